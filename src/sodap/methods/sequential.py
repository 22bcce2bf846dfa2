"""Plain sequential fine-tuning of a linear head: what happens when nothing is done to remember."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.base import Batch, LinearHead, Method, MethodConfig
from sodap.methods.registry import register_method
from sodap.randomness import Randomness


class SequentialConfig(MethodConfig):
    """There is nothing to choose."""


@register_method
class Sequential(Method):
    """A linear head on the frozen features, trained on one domain after the other."""

    name = "sequential"
    family = "reference"
    trains = "head"
    stores = "nothing"
    Config = SequentialConfig

    def __init__(
        self,
        backbone: FrozenViT,
        classes: int,
        randomness: Randomness,
        config: MethodConfig,
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.backbone(images)
        logits: Tensor = self.head(features)
        return logits
