"""α-entmax as in `sodap.prompting.entmax`, many times faster.

By Newton's method for α = 1.5, by sorting for α = 2, by bisection otherwise; on a GPU by one Triton
kernel. Works under ``torch.compile`` and ``vmap``.
"""

from functools import cache
from importlib import import_module
from types import ModuleType
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
    """Return the α-entmax of ``logits / temperature`` along ``dim``.

    The weights are ``[(α-1) ℓ/temperature - τ]_+ ^ (1/(α-1))``, with τ such that they sum to one.

    ``mask`` (bool, True = may be selected) broadcasts with ``logits``. Masked entries get weight
    zero; a row in which all entries are masked is all zeros. Half precision is computed and
    returned in float32.
    """
    if alpha <= 1:
        raise ValueError(f"alpha must be above 1 (1 is softmax), not {alpha}")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    scores = logits.float() if logits.dtype.itemsize < 4 else logits
    if mask is not None:
        # A finite floor, not -inf: a row that is masked entirely must not turn into NaN.
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    if dim in (-1, scores.ndim - 1):
        weights = _of_rows(scores, alpha, temperature)
    else:
        weights = _of_rows(scores.movedim(dim, -1), alpha, temperature).movedim(-1, dim)
    return weights if mask is None else torch.where(mask, weights, 0.0)


def _of_rows(scores: Tensor, alpha: float, temperature: float) -> Tensor:  # [..., N]
    weights: Tensor
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        weights = _TransparentEntmax.apply(scores, alpha, temperature)
    elif torch.is_grad_enabled():
        weights = _Entmax.apply(scores, alpha, temperature)
    else:
        weights = solve(scores, alpha, temperature)
    return weights


class _Entmax(torch.autograd.Function):
    """Entmax over the last dimension, differentiated in closed form."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: float, temperature: float) -> Tensor:  # [..., N]
        weights = solve(scores, alpha, temperature)
        ctx.save_for_backward(weights)
        ctx.alpha, ctx.temperature = alpha, temperature
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        return gradient(weights, grad, ctx.alpha, ctx.temperature), None, None


class _TransparentEntmax(torch.autograd.Function):
    """The same in the form that vmap and torch.compile need; calling it takes twice as long."""

    @staticmethod
    def forward(scores: Tensor, alpha: float, temperature: float) -> Tensor:
        # A copy: torch 2.11 compiles this so that a result computed in place is saved too early.
        return solve(scores, alpha, temperature).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        _, ctx.alpha, ctx.temperature = inputs
        ctx.save_for_backward(output)

    backward = _Entmax.backward

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], scores: Tensor, *options: float
    ) -> tuple[Tensor, int]:
        # All leading dimensions are batch dimensions anyway.
        return _TransparentEntmax.apply(scores.movedim(in_dims[0], 0), *options), 0


def solve(scores: Tensor, alpha: float, temperature: float) -> Tensor:
    """Compute the weights of ``scores [..., N]``, without a gradient."""
    fused = kernels(scores, alpha)
    if fused is not None:
        found: Tensor = fused.forward(scores, temperature)
        return found
    # The best score is at 0 with weight (-τ)^(1/(α-1)) <= 1, so τ >= -1: scores at or below -1 get
    # no weight. Clamping them there is exact and keeps large logits from overflowing.
    top = scores.amax(-1, keepdim=True)
    z = (scores - top).mul_((alpha - 1) / temperature).clamp_(min=-1)
    if alpha == 1.5:
        return z.sub_(_threshold_of_squares(z)).relu_().square_()
    if alpha == 2:
        return z.sub_(_threshold_of_lines(z)).relu_()
    weights = z.sub_(_threshold_by_bisection(z, alpha)).relu_().pow_(1 / (alpha - 1))
    return weights.div_(weights.sum(-1, keepdim=True))


def gradient(weights: Tensor, grad: Tensor, alpha: float, temperature: float) -> Tensor:
    """Compute the gradient of the scores from that of the weights; all ``[..., N]``."""
    second_order = torch.is_grad_enabled()  # by create_graph=True
    fused = None if second_order else kernels(weights, alpha)
    if fused is not None:
        found: Tensor = fused.backward(weights, grad, temperature)
        return found
    slope = slope_of(weights, alpha)
    product = slope * grad
    mean = product.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
    if second_order:
        return product.addcmul(slope, mean, value=-1) / temperature
    product.addcmul_(slope, mean, value=-1)
    return product if temperature == 1 else product.div_(temperature)


def kernels(scores: Tensor, alpha: float) -> ModuleType | None:
    """Return `sodap.prompting.fast.entmax_triton` where it applies, else None.

    Not under torch.compile, which fuses the operations itself.
    """
    if (
        not scores.is_cuda
        or alpha != 1.5
        or scores.dtype != torch.float32
        or scores.shape[-1] > 1024
        or torch.compiler.is_compiling()
    ):
        return None
    return _triton()


@cache
def _triton() -> ModuleType | None:
    try:
        return import_module("sodap.prompting.fast.entmax_triton")
    except ImportError:  # torch is installed without Triton on some systems
        return None


def slope_of(weights: Tensor, alpha: float) -> Tensor:
    """Derivative of each weight by its own score up to a factor: ``p^(2-α)``, 0 off the support."""
    if not torch.is_grad_enabled():
        if alpha == 1.5:
            return weights.sqrt()
        if alpha == 2:
            return weights.sign()
    # Written so that it and its derivative are finite at p = 0. The floor is below any weight on
    # the support, which rounding keeps above the square of the precision.
    floor = torch.finfo(weights.dtype).tiny ** (0.5 / max(1.0, alpha - 1))
    return weights / weights.clamp(min=floor) ** (alpha - 1)


def _threshold_of_squares(z: Tensor) -> Tensor:
    """τ with ``Σ [z - τ]_+² = 1`` (α = 1.5) for z in [-1, 0]: ``[..., N] -> [..., 1]``.

    Newton's method on the length of ``[z - τ]_+``, which is convex in τ and must be 1. Started left
    of the root it approaches it and never passes it; for equal scores the first step is exact.
    A sort finds the same τ, but takes ten times as long on many rows.
    """
    size = z.shape[-1]
    # Two lower bounds of the root: one score has all weight, or all scores are equal.
    tau = z.mean(-1, keepdim=True).sub_(size**-0.5).clamp_(min=-1)
    above = torch.empty_like(z, memory_format=torch.contiguous_format)  # for torch.compile
    for remaining in reversed(range(newton_steps(size, z.dtype))):
        torch.sub(z, tau, out=above).relu_()
        total = above.sum(-1, keepdim=True)
        if remaining:
            length = torch.linalg.vector_norm(above, dim=-1, keepdim=True)
        else:  # more exact on long rows than the norm above, which accumulates in one pass
            length = above.square_().sum(-1, keepdim=True).sqrt_()
        excess = length.addcmul(length, length, value=-1)  # length (1 - length)
        tau.addcdiv_(excess, total, value=-1)
    return tau


def newton_steps(size: int, dtype: torch.dtype) -> int:
    """Number of steps of ``_threshold_of_squares`` that reach the precision of ``dtype``.

    In each step the slope, which stays between √N and 1, and the distance to the root shrink by
    factors that add up to at most one: slow steps are few, and possible only for a large N.
    The counts are at least one more than the hardest rows need that a search could find.
    """
    return (7 if dtype == torch.float64 else 5) + size.bit_length() // 3


def _threshold_of_lines(z: Tensor) -> Tensor:
    """τ with ``Σ [z - τ]_+ = 1`` (α = 2, sparsemax), z in [-1, 0]: ``[..., N] -> [..., 1]``."""
    ordered = z.sort(-1, descending=True).values
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    spread = ordered.cumsum(-1).addcmul_(rank, ordered, value=-1)
    size = (spread < 1).sum(-1, keepdim=True).clamp_(min=1)  # for NaN, whose size is 0
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
