"""LoRA for the blocks of a ViT: low-rank residuals as rows of numbers, and the port that adds them.

The residual of all blocks from `first` on is one tensor `[L, P]`, with a row for each block that
holds the factors of its four linear layers. Residuals of several experts are `[E, L, P]`: they can
be gathered by image, kept in one buffer, and frozen to the bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from timm.layers.mlp import Mlp
from torch import Tensor, nn

from sodap.backbones.block import require_plain
from sodap.backbones.low_rank import BlockLora, BlockResiduals, BlockWeights, LowRank
from sodap.backbones.ports import Lora
from sodap.errors import SodapError

if TYPE_CHECKING:
    from sodap.backbones.vit import PortedViT


Function = TypeVar("Function", bound=Callable[..., Any])


def full_precision(function: Function) -> Function:
    """Decorator: switch autocast off, which would round products of weights as it does tokens."""

    @functools.wraps(function)
    def called(*given: Any, **more: Any) -> Any:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            return function(*given, **more)

    return cast(Function, called)


@dataclass(frozen=True)
class LoraLayout:
    """Where the factors of each linear layer lie in a row of P numbers."""

    first: int
    """The first block with a residual, counted from 0."""
    blocks: int
    """L, the number of blocks with a residual."""
    rank: int
    shapes: tuple[tuple[int, int], ...]
    """Width of the input and of the output of each linear layer."""

    @classmethod
    def of(cls, backbone: PortedViT, *, first: int = 0, rank: int = 8) -> LoraLayout:
        """The layout for the blocks of a backbone from `first` on."""
        layers = [linear_layers(block) for block in backbone.vit.blocks]
        shapes = {tuple((each.in_features, each.out_features) for each in row) for row in layers}
        if len(shapes) > 1:
            raise SodapError(f"the blocks of {backbone.name} differ in width and take no LoRA")
        return cls(first, backbone.depth - first, rank, shapes.pop())

    @property
    def size(self) -> int:
        """P, the number of factors of one block."""
        return sum(self.rank * (wide + high) for wide, high in self.shapes)

    def draw(self, generator: torch.Generator) -> Tensor:
        """A new residual `[L, P]` of zero: `down` is uniform within ±1/√I, and `up` is 0."""
        rows = torch.zeros(self.blocks, self.size)
        for (down, _), (wide, _) in zip(self.split(rows), self.shapes, strict=True):
            drawn = torch.rand(down.shape, generator=generator)
            down.copy_((2 * drawn - 1) / wide**0.5)
        return rows

    def split(self, rows: Tensor) -> BlockResiduals:
        """Rows `[..., P]` as factors, which are views: `down` `[..., r, I]`, `up` `[..., O, r]`."""
        sizes = [self.rank * width for shape in self.shapes for width in shape]
        parts = iter(torch.split(rows, sizes, dim=-1))
        lead, r = rows.shape[:-1], self.rank
        return BlockResiduals(
            *(
                LowRank(next(parts).view(*lead, r, wide), next(parts).view(*lead, high, r))
                for wide, high in self.shapes
            )
        )

    def port(
        self,
        rows: Tensor | None = None,
        *,
        chosen: Tensor | None = None,
        weights: Sequence[BlockWeights] | None = None,
    ) -> Lora:
        """The port that adds a residual.

        Args:
            rows: a residual `[L, P]` for all images, or residuals `[E, L, P]` to choose from.
            chosen: residual of each image `[B]`, an index into `rows`.
            weights: folded weights of each block, to be used instead of the network's own.
        """
        if rows is not None and torch.is_autocast_enabled(rows.device.type):
            rows = rows.to(torch.get_autocast_dtype(rows.device.type))  # once, not factor by factor

        def lora(layer: int) -> BlockLora | None:
            index = layer - self.first
            if index < 0:
                return None
            own = None if weights is None else weights[index]
            if rows is None:
                return BlockLora(own)
            row = rows[index] if chosen is None else rows[:, index].index_select(0, chosen)
            return BlockLora(own, self.split(row))

        return lora

    @full_precision
    def fold(self, backbone: PortedViT, rows: Tensor) -> list[BlockWeights]:
        """The weights of each block with a residual `[L, P]` added, in the precision they have."""
        folded = []
        blocks = backbone.vit.blocks[self.first :]
        for block, residuals in zip(blocks, map(self.split, rows), strict=True):
            folded.append(
                BlockWeights(
                    *(
                        (layer.weight.to(up.dtype) + up @ down).to(layer.weight.dtype)
                        for layer, (down, up) in zip(linear_layers(block), residuals, strict=True)
                    )
                )
            )
        return folded

    @torch.no_grad()
    @full_precision
    def mean(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The residual `[L, P]` of rank r that is nearest to the weighted mean of `[E, L, P]`.

        The product of the factors is averaged, not the factors: these are not unique. The mean has
        rank E·r; its largest r singular values are kept, and each factor takes their square roots.
        """
        shares = (weights / weights.sum()).to(rows)
        result = torch.zeros_like(rows[0])
        for (to_down, to_up), (down, up) in zip(self.split(result), self.split(rows), strict=True):
            tall = (up * shares.view(-1, 1, 1, 1)).movedim(0, -2).flatten(-2)  # [L, O, E·r]
            wide = down.movedim(0, -3).flatten(-3, -2)  # [L, E·r, I]
            left, upper = torch.linalg.qr(tall)
            right, lower = torch.linalg.qr(wide.mT)
            u, s, v = torch.linalg.svd(upper @ lower.mT)
            root = s[..., : self.rank].sqrt()
            to_up.copy_(left @ (u[..., : self.rank] * root.unsqueeze(-2)))
            to_down.copy_((right @ (v.mT[..., : self.rank] * root.unsqueeze(-2))).mT)
        return result


def linear_layers(block: nn.Module) -> tuple[nn.Linear, ...]:
    """The linear layers of a plain block, in the order of `BlockWeights`."""
    plain: Any = require_plain(block)
    if not isinstance(plain.mlp, Mlp) or not isinstance(plain.mlp.fc1, nn.Linear):
        raise SodapError(
            f"an MLP of type {type(plain.mlp).__name__} takes no LoRA; choose a ViT with timm's "
            f"plain MLP"
        )
    return cast(
        tuple[nn.Linear, ...], (plain.attn.qkv, plain.attn.proj, plain.mlp.fc1, plain.mlp.fc2)
    )


class FoldedBlocks(nn.Module):
    """Weights of a network's blocks with a residual folded in; not part of the state.

    A pass with these weights costs as much as one without LoRA.
    """

    def __init__(self, layout: LoraLayout) -> None:
        super().__init__()
        self.layout = layout
        for name in BlockWeights._fields:
            self.register_buffer(name, torch.zeros(0), persistent=False)

    @torch.no_grad()
    @full_precision
    def fold(self, backbone: PortedViT, rows: Tensor) -> None:
        """Fold a residual `[L, P]` into the weights of the backbone."""
        folded = zip(*self.layout.fold(backbone, rows), strict=True)
        for name, weights in zip(BlockWeights._fields, folded, strict=True):
            stacked = torch.stack(weights)  # [L, O, I]
            kept: Tensor = getattr(self, name)
            if (kept.shape, kept.dtype) == (stacked.shape, stacked.dtype):
                kept.copy_(stacked)  # at the same address, for CUDA graphs
            else:
                setattr(self, name, stacked)

    def weights(self) -> list[BlockWeights]:
        """Weights of each block."""
        stacks = (getattr(self, name) for name in BlockWeights._fields)
        return [BlockWeights(*each) for each in zip(*stacks, strict=True)]
