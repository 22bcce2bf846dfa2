"""The network of residual experts: a frozen trunk, and later blocks with low-rank residuals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sodap.backbones import Lora
from sodap.methods.parts.last_blocks import read_last_blocks, width_of_last_blocks

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class TrunkAndBranches:
    """Runs the first blocks of a backbone once, and the later ones with different residuals.

    Args:
        share: share of the blocks that form the trunk, rounded up; one block is left at least.
        read_blocks: number of last blocks whose tokens are read, at most all after the trunk.
    """

    def __init__(self, backbone: FrozenViT, share: float, read_blocks: int) -> None:
        self.backbone = backbone
        self.length = min(math.ceil(share * backbone.depth), backbone.depth - 1)
        self.read_blocks = min(read_blocks, backbone.depth - self.length)

    @property
    def feature_width(self) -> int:
        """Width of `features`: CLS and mean patch of each block that is read."""
        return width_of_last_blocks(self.backbone, self.read_blocks)

    @property
    def statistics_width(self) -> int:
        """Width of `statistics`: mean and standard deviation."""
        return 2 * self.backbone.width

    @torch.no_grad()
    def trunk(self, images: Tensor) -> Tensor:
        """Tokens after the trunk `[B, N, D]`, without gradient."""
        tokens = self.backbone.embed(images)
        for after in self.backbone.through(tokens, last=self.length):
            tokens = after
        return tokens

    def statistics(self, trunk: Tensor) -> Tensor:
        """Mean and standard deviation of the patch tokens after the trunk: `[B, 2D]`."""
        patches = trunk[:, self.backbone.prefix_tokens :].float()
        spread, mean = torch.std_mean(patches, dim=1, correction=0)
        return torch.cat([mean, spread], 1)

    def features(self, trunk: Tensor, lora: Lora | None) -> Tensor:
        """CLS and mean patch token of the last blocks `[B, F]`, in float32."""
        return read_last_blocks(
            self.backbone, trunk, self.read_blocks, first=self.length, lora=lora
        )
