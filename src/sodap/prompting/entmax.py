"""α-entmax: softmax's sparse relative, which gives low scores a weight of exactly zero."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor


def entmax(
    logits: Tensor,
    alpha: float = 1.5,
    *,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """The α-entmax of ``logits / temperature`` along ``dim``.

    Weights are ``[(α-1) ℓ/temperature - τ]_+ ^ (1/(α-1))`` with τ such that they sum to one. The
    paper prints ``[(α-1)/α (ℓ - τ)]_+ ^ (1/(α-1))``, which is this map at ``temperature=alpha``.

    ``mask`` (bool, True = may be selected) broadcasts with ``logits``; what it rules out weighs
    exactly zero, and a row that rules out everything is all zeros. Half precision is computed and
    returned in float32.
    """
    if alpha <= 1:
        raise ValueError(f"alpha must be above 1 (1 is softmax), not {alpha}")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    scores = logits.float() if logits.dtype.itemsize < 4 else logits
    if mask is not None:
        # A finite floor, not -inf: a row without any choice must not turn into NaN.
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights: Tensor
    if dim in (-1, scores.ndim - 1):
        weights = _Entmax.apply(scores, alpha, temperature)
    else:
        weights = _Entmax.apply(scores.movedim(dim, -1), alpha, temperature).movedim(-1, dim)
    return weights if mask is None else torch.where(mask, weights, 0.0)


class _Entmax(torch.autograd.Function):
    """Entmax over the last dimension, with the closed-form Jacobian instead of a traced sort."""

    @staticmethod
    def forward(scores: Tensor, alpha: float, temperature: float) -> Tensor:  # [..., N]
        # The best score sits at 0 and weighs (-τ)^(1/(α-1)) <= 1, so τ >= -1: whatever lies at or
        # below -1 weighs nothing. Clamping there costs no accuracy and tames any size of logit.
        top = scores.amax(-1, keepdim=True)
        z = (scores - top).mul_((alpha - 1) / temperature).clamp_(min=-1)
        if alpha == 1.5:
            return (z - _threshold_of_squares(z)).relu_().square_()
        if alpha == 2:
            return (z - _threshold_of_lines(z)).relu_()
        weights = (z - _threshold_by_bisection(z, alpha)).relu_().pow_(1 / (alpha - 1))
        return weights / weights.sum(-1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        _, ctx.alpha, ctx.temperature = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        # p^(2-α), written so that it and its derivative are finite at p = 0. The floor lies below
        # any weight on the support, which rounding keeps above the square of the precision.
        floor = torch.finfo(weights.dtype).tiny ** (0.5 / max(1.0, ctx.alpha - 1))
        slope = weights / weights.clamp(min=floor) ** (ctx.alpha - 1)
        pull = slope * grad
        mean = pull.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
        return pull.addcmul(slope, mean, value=-1) / ctx.temperature, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], scores: Tensor, *options: float
    ) -> tuple[Tensor, int]:
        # Any leading dimension is a batch already.
        return _Entmax.apply(scores.movedim(in_dims[0], 0), *options), 0


# Torch binds the arguments at every call; reading the signature once makes that cheap.
_Entmax.forward.__signature__ = signature(_Entmax.forward)  # type: ignore[attr-defined]


def _threshold_of_squares(z: Tensor) -> Tensor:
    """τ with ``Σ [z - τ]_+² = 1`` (α = 1.5), from z sorted once: ``[..., N] -> [..., 1]``."""
    ordered = z.sort(-1, descending=True).values
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    # The k best form the support while Σ_{i<=k} (z_i - z_k)² < 1; this sum grows with k.
    twice = (rank * ordered).sub_(ordered.cumsum(-1), alpha=2)
    spread = ordered.square().cumsum(-1).addcmul_(ordered, twice)
    size = (spread < 1).sum(-1, keepdim=True).clamp_(min=1)  # NaN stays NaN, and no bad index
    least = ordered.gather(-1, size - 1)
    # Seen from its least member, t = least - τ solves Σ y² + 2 t Σ y + k t² = 1. Sums of these
    # small y, unlike the running sums, lose nothing to rounding.
    y = (z - least).relu_()
    total = y.sum(-1, keepdim=True)
    over: Tensor = torch.linalg.vector_norm(y, dim=-1, keepdim=True).square_() - 1
    root = (total.square() - size * over).relu_().sqrt_()
    return least + over.div_(total + root)


def _threshold_of_lines(z: Tensor) -> Tensor:
    """τ with ``Σ [z - τ]_+ = 1`` (α = 2, sparsemax): ``[..., N] -> [..., 1]``, as above."""
    ordered = z.sort(-1, descending=True).values
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    spread = ordered.cumsum(-1).addcmul_(rank, ordered, value=-1)
    size = (spread < 1).sum(-1, keepdim=True).clamp_(min=1)  # NaN stays NaN, and no bad index
    least = ordered.gather(-1, size - 1)
    total = (z - least).relu_().sum(-1, keepdim=True)
    return least + (total - 1).div_(size)


def _threshold_by_bisection(z: Tensor, alpha: float) -> Tensor:
    """τ with ``Σ [z - τ]_+ ^ (1/(α-1)) = 1`` for any α > 1: ``[..., N] -> [..., 1]``."""
    # τ is -1 when one entry takes all, and -N^(1-α) when all N are equal.
    low = torch.full_like(z[..., :1], -1)
    width = 1 - float(z.shape[-1]) ** (1 - alpha)
    for _ in range(60 if z.dtype == torch.float64 else 30):
        width /= 2
        mass = ((z - (low + width)).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True)
        low = torch.where(mass >= 1, low + width, low)
    return low
