"""A prompt pool that grows by a block of rows per stage; only the newest block trains.

CODA-Prompt, OS-Prompt and UniPrompt use this pool and differ in how an image queries it. The pool
has no maximum size, so the number of stages need not be known in advance.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sodap.freezing import resize_on_load


class GrowingRows(nn.Module):
    """Rows `[L, N, W]`, one set per layer: a buffer of frozen rows and a parameter that trains."""

    frozen: Tensor  # [L, F, W]

    def __init__(self, layers: int, width: int, count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("frozen", torch.zeros(layers, 0, width))
        self.newest = nn.Parameter(orthogonal_rows(self.frozen, count, generator))
        resize_on_load(self, "frozen", "newest", dim=1)

    @property
    def rows(self) -> Tensor:
        """`[L, N, W]`, oldest first; only the newest block passes a gradient on."""
        return torch.cat([self.frozen, self.newest], dim=1)

    @torch.no_grad()
    def grow(self, count: int, generator: torch.Generator) -> None:
        """Freeze all rows and add `count` trainable ones, in a new parameter."""
        self.frozen = self.rows
        self.newest = nn.Parameter(orthogonal_rows(self.frozen, count, generator))


class GrowingPool(nn.Module):
    """Keys `[L, N, D]` and prompts `[L, N, length · D]` of L layers.

    With `attention` there are also vectors A `[L, N, D]` that weight the coordinates of the query
    separately for each row.
    """

    def __init__(
        self,
        width: int,
        *,
        layers: int,
        length: int,
        rows: int,
        attention: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.width = width
        self.keys = GrowingRows(layers, width, rows, generator)
        self.prompts = GrowingRows(layers, length * width, rows, generator)
        self.attention = GrowingRows(layers, width, rows, generator) if attention else None

    @property
    def sets(self) -> list[GrowingRows]:
        """Keys, prompts and, if there are any, attention vectors."""
        return [self.keys, self.prompts] + ([self.attention] if self.attention is not None else [])

    @property
    def frozen_count(self) -> int:
        return self.keys.frozen.shape[1]

    @property
    def active_count(self) -> int:
        return self.keys.newest.shape[1]

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Freeze all rows and add `count` trainable ones, in all layers."""
        for each in self.sets:
            each.grow(count, generator)


def orthogonal_rows(earlier: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random unit rows `[L, count, W]`, orthogonal to each other and to `earlier` `[L, F, W]`.

    One QR decomposition gives the rows that Gram-Schmidt would make of normal draws. At most W
    rows can be orthogonal; the rest are random directions, because the remainder that Gram-Schmidt
    would normalise for them is only rounding error. Drawn on the CPU in float64, so that every
    device starts from the same rows.
    """
    layers, used, width = earlier.shape
    drawn = torch.randn(layers, count, width, generator=generator, dtype=torch.float64)
    fitting = max(0, min(count, width - used))
    columns = torch.cat([earlier.detach().to(drawn), drawn[:, :fitting]], dim=1).mT
    basis, triangle = torch.linalg.qr(columns)  # [L, W, F + fitting]
    sign = triangle.diagonal(dim1=-2, dim2=-1)[:, None, used:]
    orthogonal = torch.where(sign < 0, -basis[..., used:], basis[..., used:])
    rows = torch.cat([orthogonal.mT, F.normalize(drawn[:, fitting:], dim=-1)], dim=1)
    return rows.to(earlier)


def weighted_prefix(weights: Tensor, prompts: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Weighted sum of prompts, its first half as attention keys and its second half as values.

    `[..., B, N], [..., N, length · D] -> [..., B, length / 2, D]` twice.
    """
    total = weights @ prompts
    keys, values = total.view(*total.shape[:-1], 2, -1, width).unbind(-3)
    return keys, values


def orthogonality_penalty(rows: Tensor) -> Tensor:
    """Mean of `(X Xᵀ - 1)²` over the entries, summed over layers: `[L, N, W] -> []`.

    Frozen rows are included, because their products with new rows push the new rows away.
    """
    identity = torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)
    return (rows @ rows.mT - identity).square().mean((-2, -1)).sum()
