"""α-entmax, equation (4): a sparse softmax, by bisection.

`sodap.prompting.fast.entmax` computes the same map many times faster.
"""

# mypy: allow-untyped-decorators

from typing import Any

import torch
from torch import Tensor

STEPS = 80
"""Bisection steps: enough for float64."""


def entmax(logits: Tensor, alpha: float = 1.5, *, temperature: float = 1.0) -> Tensor:
    """Return the α-entmax of ``logits / temperature`` over the last dimension.

    The weights are ``[(α-1) ℓ/temperature - τ]_+ ^ (1/(α-1))``, with τ such that they sum to one.
    The paper prints ``[(α-1)/α (ℓ - τ)]_+ ^ (1/(α-1))``: this map at ``temperature=alpha``.
    """
    if alpha <= 1:
        raise ValueError(f"alpha must be above 1 (1 is softmax), not {alpha}")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    weights: Tensor = _solve((alpha - 1) / temperature * logits, alpha)
    return weights


@torch.library.custom_op("sodap::entmax", mutates_args=())
def _solve(z: Tensor, alpha: float) -> Tensor:
    """Find the weights ``[z - τ]_+ ^ (1/(α-1))`` of ``z [..., N]``.

    One operator for torch.compile, which would otherwise unroll all steps.
    """

    def weights(tau: Tensor) -> Tensor:
        return (z - tau).clamp(min=0) ** (1 / (alpha - 1))

    # The largest entry alone has weight 1 at τ = max - 1; N equal ones at τ = max - N^(1-α).
    top = z.amax(-1, keepdim=True)
    low, high = top - 1, top - z.shape[-1] ** (1 - alpha)
    for _ in range(STEPS):
        middle = (low + high) / 2
        too_much = weights(middle).sum(-1, keepdim=True) >= 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    found = weights(low)
    return found / found.sum(-1, keepdim=True)


@_solve.register_fake
def _(z: Tensor, alpha: float) -> Tensor:
    return torch.empty_like(z)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    _, ctx.alpha = inputs
    ctx.save_for_backward(output)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    """Each weight follows its own z with slope ``w^(2-α)/(α-1)``; τ keeps the sum at one."""
    (weights,) = ctx.saved_tensors
    slope = torch.where(weights > 0, weights ** (2 - ctx.alpha), 0.0)
    mean = (slope * grad).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
    return slope * (grad - mean) / (ctx.alpha - 1), None


_solve.register_autograd(_gradient, setup_context=_save)
