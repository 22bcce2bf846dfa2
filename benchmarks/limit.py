"""The limit of any prompt method: a frozen ViT and one trainable vector on CLS before every block.

Whoever learns something inside a frozen ViT pays for one forward pass and for one backward pass
through the activations. This method does nothing else. What a method takes beyond it is its own.

The ViT is run as timm runs it, whole. A sharper limit leaves out, as our own methods do, what the
last block makes of tokens that nobody reads.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.backbones.vit import ClsPort
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

    only_cls = False

    def port(self) -> ClsPort | None:
        return lambda at, tokens: tokens[:, 0] + self.shift[at]

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.backbone.tokens(images, cls=self.port(), only_cls=self.only_cls)
        return cast(Tensor, self.head(self.backbone.norm(tokens[:, 0])))

    def losses(
        self, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(images), labels)}


@register_method
class Untouched(Limit):
    """The frozen ViT and a head with nothing in between: the limit of inference."""

    name = "untouched"
    trains = "head"

    def port(self) -> ClsPort | None:
        return None


@register_method
class SharpLimit(Limit):
    """The limit without what the last block makes of tokens that nobody reads."""

    name = "sharp-limit"
    only_cls = True


@register_method
class SharpUntouched(Untouched):
    """The limit of inference without what the last block makes of tokens that nobody reads."""

    name = "sharp-untouched"
    only_cls = True
