"""Lower bound on the time of any prompt method: one trainable vector on CLS before every block.

Training anything inside a frozen ViT takes at least one forward pass, and one backward pass through
the activations. These methods do nothing else.

`limit` runs timm's ViT as timm does. `sharp-limit` uses the shortcuts of `sodap.backbones`: patches
as a matrix product, delayed sums, and CLS only in the last block.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.backbones.ports import ClsPort
from sodap.methods import Batch, Method, MethodConfig, register_method
from sodap.methods.base import LinearHead
from sodap.randomness import Randomness


class LimitConfig(MethodConfig):
    """No options."""


def _embed(vit: VisionTransformer, images: Tensor) -> Tensor:
    tokens: Tensor = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    return tokens


def _shifted_block(block: nn.Module, tokens: Tensor, shift: Tensor | None) -> Tensor:
    """Add a vector `[D]` to CLS, then call timm's block."""
    if shift is not None:
        tokens = torch.cat([tokens[:, :1] + shift, tokens[:, 1:]], dim=1)
    result: Tensor = block(tokens)
    return result


@register_method
class Limit(Method):
    """A trainable vector on CLS before every block, and a linear head."""

    name = "limit"
    family = "reference"
    trains = "one vector per block, head"
    stores = "nothing"
    Config = LimitConfig
    moves_cls = True

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.shift = nn.Parameter(torch.zeros(backbone.depth, backbone.width))
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))
        self._embed, self._block = _embed, _shifted_block

    def compile_parts(self) -> None:
        super().compile_parts()
        self._embed, self._block = torch.compile(_embed), torch.compile(_shifted_block)

    def features(self, images: Tensor) -> Tensor:
        """CLS features `[B, D]`."""
        vit = self.backbone.vit
        tokens = self._embed(vit, images)
        for layer, block in enumerate(vit.blocks):
            tokens = self._block(block, tokens, self.shift[layer] if self.moves_cls else None)
        return self.backbone.norm(tokens[:, 0])

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(images)))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}


@register_method
class Untouched(Limit):
    """A linear head on the frozen ViT: the lower bound for predictions."""

    name = "untouched"
    trains = "head"
    moves_cls = False


@register_method
class SharpLimit(Limit):
    """The limit with the shortcuts of `sodap.backbones`."""

    name = "sharp-limit"

    def features(self, images: Tensor) -> Tensor:
        port: ClsPort = lambda layer, tokens: tokens[:, 0] + self.shift[layer]  # noqa: E731
        return cast(Tensor, self.backbone(images, cls=port if self.moves_cls else None))


@register_method
class SharpUntouched(SharpLimit):
    """The lower bound for predictions with the shortcuts of `sodap.backbones`."""

    name = "sharp-untouched"
    trains = "head"
    moves_cls = False
