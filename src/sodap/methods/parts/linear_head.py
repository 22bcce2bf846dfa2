"""Base class of methods that train a linear head with cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from sodap.methods.base import Batch, LinearHead, Method, MethodConfig
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class LinearHeadMethod(Method):
    """One linear head for all stages, on features that subclasses may replace."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))

    def features(self, images: Tensor) -> Tensor:
        """Input of the head `[B, D]`; here the features of the frozen backbone."""
        return self.frozen_features(images)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}
