"""A pool that grows by a block of rows at every stage; each block trains once and then rests.

CODA-Prompt, OS-Prompt and UniPrompt are this pool under three ways of asking it. It has no last
size: whoever keeps learning cannot say in advance how many stages there will be.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sodap.freezing import resize_on_load

# The length below which a vector has no direction: that of `F.normalize`.
SHORTEST = 1e-12


class GrowingRows(nn.Module):
    """Rows `[L, N, W]`, a set for each of L layers, of which only the newest block trains.

    Earlier blocks are one buffer, the newest is a parameter. In one parameter the earlier rows
    would not rest: decay and momentum move rows that get no gradient.
    """

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
        """Freeze all there is and add `count` rows. The parameter is a new one from here on."""
        self.frozen = self.rows
        self.newest = nn.Parameter(orthogonal_rows(self.frozen, count, generator))


class PrefixPool(nn.Module):
    """Keys `[L, N, D]` and the prompts `[L, N, length · D]` they stand for, for L layers at once.

    With `attention` there is a third set A `[L, N, D]`, which weighs the coordinates of the query
    for each row on its own.
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
        """Everything that grows: keys, prompts and, where there is one, the attention."""
        return [self.keys, self.prompts] + ([self.attention] if self.attention is not None else [])

    @property
    def frozen_count(self) -> int:
        return self.keys.frozen.shape[1]

    @property
    def active_count(self) -> int:
        return self.keys.newest.shape[1]

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Freeze every row and add `count` new ones, in all layers."""
        for each in self.sets:
            each.grow(count, generator)


def orthogonal_rows(earlier: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` random rows of length 1, orthogonal to each other and to `earlier [L, F, W]`.

    These are the rows that Gram-Schmidt makes of normal draws, by one QR decomposition. A space of
    W dimensions holds W such rows. Those beyond are random directions, at right angles to nothing:
    the remainder that Gram-Schmidt would scale up for them is only rounding error. Drawn on the
    CPU in float64, so that every device starts from the same rows.
    """
    layers, used, width = earlier.shape
    drawn = torch.randn(layers, count, width, generator=generator, dtype=torch.float64)
    fitting = max(0, min(count, width - used))
    columns = torch.cat([earlier.detach().to(drawn), drawn[:, :fitting]], dim=1).mT
    basis, triangle = torch.linalg.qr(columns)  # [L, W, F + fitting]
    along = triangle.diagonal(dim1=-2, dim2=-1)[:, None, used:]
    upright = torch.where(along < 0, -basis[..., used:], basis[..., used:])
    rows = torch.cat([upright.mT, F.normalize(drawn[:, fitting:], dim=-1)], dim=1)
    return rows.to(earlier)


def cosine(query: Tensor, keys: Tensor) -> Tensor:
    """`cos(q, K_n)`: `[..., B, D], [..., N, D] -> [..., B, N]`."""
    return F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).mT


def attended_cosine(query: Tensor, attention: Tensor, keys: Tensor) -> Tensor:
    """`cos(q ∘ A_n, K_n)`: `[B, D], [L, N, D], [L, N, D] -> [L, B, N]`.

    Every row sees a query of its own, but nothing of size B x N x D is needed: the product is
    `q · (A_n ∘ K_n)`, and the squared length of `q ∘ A_n` is `q² · A_n²`.
    """
    product = query @ (attention * F.normalize(keys, dim=-1)).mT
    squared = query.square() @ attention.square().mT
    return product / squared.clamp(min=SHORTEST**2).sqrt()


def prefix_halves(weights: Tensor, prompts: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The weighted prompts as attention keys and values, the first half and the second half.

    `[..., B, N], [..., N, length · D] -> [..., B, length / 2, D]` twice.
    """
    answer = weights @ prompts
    keys, values = answer.view(*answer.shape[:-1], 2, -1, width).unbind(-3)
    return keys, values


def orthogonality(rows: Tensor) -> Tensor:
    """How far rows `[L, N, W]` are from orthonormal: the mean of `(X Xᵀ - 1)²`, summed over layers.

    Frozen rows count as well: what is between them and new rows pushes the new ones away.
    """
    identity = torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)
    return (rows @ rows.mT - identity).square().mean((-2, -1)).sum()
