"""Linear layers with other weights or a low-rank residual, the elements of LoRA (Hu et al., 2022).

x  ->  x Wᵀ + b + (x downᵀ) upᵀ
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LowRank(NamedTuple):
    """A residual of rank r for a linear layer: the same for a batch, or one for each image."""

    down: Tensor  # [r, I] or [B, r, I]
    up: Tensor  # [O, r] or [B, O, r]


class BlockWeights(NamedTuple):
    """Weights `[O, I]` of the linear layers of a block."""

    qkv: Tensor
    proj: Tensor
    fc1: Tensor
    fc2: Tensor


class BlockResiduals(NamedTuple):
    """Low-rank residuals of the linear layers of a block."""

    qkv: LowRank
    proj: LowRank
    fc1: LowRank
    fc2: LowRank


class BlockLora(NamedTuple):
    """How the linear layers of a block differ from the network's own."""

    weights: BlockWeights | None = None
    """Weights to use instead; biases stay."""
    residuals: BlockResiduals | None = None
    """Residuals to add."""


def linear(layer: nn.Linear, x: Tensor, lora: BlockLora | None, name: str) -> Tensor:
    """Apply `layer`, called `name` in `BlockWeights`, to tokens: `[B, N, I] -> [B, N, O]`."""
    if lora is None:
        return layer(x)  # type: ignore[no-any-return]
    weight = layer.weight if lora.weights is None else getattr(lora.weights, name)
    result = F.linear(x, weight, layer.bias)
    if lora.residuals is None:
        return result
    down, up = getattr(lora.residuals, name)
    hidden = x @ down.mT  # [B, N, r]
    if up.ndim == 3:
        return torch.baddbmm(result, hidden, up.mT)
    rows = torch.addmm(result.flatten(0, -2), hidden.flatten(0, -2), up.mT)
    return rows.view_as(result)
