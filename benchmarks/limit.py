"""The limit of any prompt method: a frozen ViT and one trainable vector on CLS before every block.

Whoever learns something inside a frozen ViT pays for one forward pass and for one backward pass
through the activations. This method does nothing else. What a method takes beyond it is its own.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.methods import Method, MethodConfig, register_method
from sodap.methods.base import LinearHead
from sodap.randomness import Randomness


class LimitConfig(MethodConfig):
    """There is nothing to choose."""


@register_method
class Limit(Method):
    """A trainable vector on CLS before every block, and a head; known to benchmarks only."""

    name = "limit"
    family = "reference"
    trains = "a vector a block, head"
    stores = "nothing"
    Config = LimitConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.shift = nn.Parameter(torch.zeros(backbone.depth, backbone.width))
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images, cls=lambda at, tokens: tokens[:, 0] + self.shift[at])
        return cast(Tensor, self.head(features))

    def losses(
        self, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(images), labels)}


@register_method
class Untouched(Limit):
    """The frozen ViT and a head with nothing in between: the limit of inference."""

    name = "untouched"
    trains = "head"

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.backbone(images)))
