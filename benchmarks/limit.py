"""The limit of any prompt method: a frozen ViT and one trainable vector on CLS before every block.

Whoever learns something inside a frozen ViT pays for one forward pass and for one backward pass
through the activations. This method does nothing else. What a method takes beyond it is its own.

The limit is timm's ViT, whole, as timm runs it; nothing of `sodap.backbones` is in its way. A
sharper limit goes the way of our own methods: patches by a product, additions that wait for the
next block, and a last block that makes nothing of tokens that nobody reads.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.backbones.vit import ClsPort
from sodap.methods import Batch, Method, MethodConfig, register_method
from sodap.methods.base import LinearHead
from sodap.randomness import Randomness


class LimitConfig(MethodConfig):
    """There is nothing to choose."""


def _embed(vit: VisionTransformer, images: Tensor) -> Tensor:
    tokens: Tensor = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    return tokens


def _through(block: nn.Module, tokens: Tensor, shift: Tensor | None) -> Tensor:
    """One of timm's blocks; the vector `[D]` moves CLS before it."""
    if shift is not None:
        tokens = torch.cat([tokens[:, :1] + shift, tokens[:, 1:]], dim=1)
    passed: Tensor = block(tokens)
    return passed


@register_method
class Limit(Method):
    """A trainable vector on CLS before every block, and a head; known to benchmarks only."""

    name = "limit"
    family = "reference"
    trains = "a vector a block, head"
    stores = "nothing"
    Config = LimitConfig
    moves_cls = True

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.shift = nn.Parameter(torch.zeros(backbone.depth, backbone.width))
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))
        self._embed, self._through = _embed, _through

    def compile_parts(self) -> None:
        super().compile_parts()
        self._embed, self._through = torch.compile(_embed), torch.compile(_through)

    def features(self, images: Tensor) -> Tensor:
        """CLS `[B, D]` after the last norm."""
        vit = self.backbone.vit
        tokens = self._embed(vit, images)
        for layer, block in enumerate(vit.blocks):
            tokens = self._through(block, tokens, self.shift[layer] if self.moves_cls else None)
        return self.backbone.norm(tokens[:, 0])

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(images)))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}


@register_method
class Untouched(Limit):
    """The frozen ViT and a head with nothing in between: the limit of inference."""

    name = "untouched"
    trains = "head"
    moves_cls = False


@register_method
class SharpLimit(Limit):
    """The limit on the way that our own methods take."""

    name = "sharp-limit"

    def features(self, images: Tensor) -> Tensor:
        port: ClsPort = lambda layer, tokens: tokens[:, 0] + self.shift[layer]  # noqa: E731
        return cast(Tensor, self.backbone(images, cls=port if self.moves_cls else None))


@register_method
class SharpUntouched(SharpLimit):
    """The limit of inference on the way that our own methods take."""

    name = "sharp-untouched"
    trains = "head"
    moves_cls = False
