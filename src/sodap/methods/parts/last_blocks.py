"""Features from several of the last blocks of a ViT, not from the last one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sodap.backbones import Lora, PortedViT


def read_last_blocks(
    backbone: PortedViT,
    tokens: Tensor,
    count: int,
    *,
    first: int = 0,
    patches: bool = True,
    norm: bool = True,
    lora: Lora | None = None,
) -> Tensor:
    """CLS of the last `count` blocks (or of all, if there are fewer), concatenated, in float32.

    Args:
        tokens: tokens `[B, N, D]` before block `first`; for block 0 those of `backbone.embed`.
        patches: append the mean patch token of each block, `[B, 2 · count · D]`.
        norm: apply the network's final LayerNorm to each.
    """
    first_read = max(0, backbone.depth - count)
    read: list[Tensor] = []
    for layer, after in enumerate(backbone.through(tokens, first, lora=lora), start=first):
        if layer >= first_read:
            read.append(after[:, 0])
            if patches:
                read.append(after[:, backbone.prefix_tokens :].mean(1))
    stacked = torch.stack(read, 1)
    return (backbone.norm(stacked) if norm else stacked).flatten(1).float()


def width_of_last_blocks(backbone: PortedViT, count: int, *, patches: bool = True) -> int:
    """Width of `read_last_blocks`."""
    return min(count, backbone.depth) * backbone.width * (2 if patches else 1)
