"""A linear head that is solved for at the end of a stage, not trained: what `ncm` and `slda` share.

Sums over all domains so far decide the head, so the order of the domains leaves no trace and
nothing is forgotten.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.base import Batch, Method, MethodConfig, Observations, StageInfo
from sodap.randomness import Randomness

NEVER = -1e30
"""The logit of a class of which no image was ever seen: far below all others, yet finite."""


class ClosedFormHead(Method):
    """Subclasses say what they add up and which head follows from it."""

    family = "reference"
    trains = "head, in closed form"
    learns_by_gradient = False

    weight: Tensor  # [C, D]
    bias: Tensor  # [C]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.register_buffer("weight", torch.zeros(classes, backbone.width))
        self.register_buffer("bias", torch.zeros(classes))

    @abstractmethod
    def take_in(self, features: Tensor, labels: Tensor) -> None:
        """Add features `[B, D]` of classes `labels` `[B]` to what is known."""

    @abstractmethod
    def solve(self) -> tuple[Tensor, Tensor]:
        """The head, `[C, D]` and `[C]`, in float64, that follows from all that was taken in."""

    def features(self, images: Tensor) -> Tensor:
        """`[B, D]`, without gradient."""
        with torch.no_grad():
            return cast(Tensor, self.backbone(images)).float()

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)  # in the precision in which they were learned from
        with torch.autocast(images.device.type, enabled=False):
            return F.linear(features, self.weight, self.bias)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, for inspection only: nothing is trained with it."""
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        for images, labels in train:
            self.take_in(self.features(images), labels)
        weight, bias = self.solve()
        self.weight.copy_(weight)
        self.bias.copy_(bias)
        return {}

    def trainable_count(self) -> int:
        return self.weight.numel() + self.bias.numel()


def without_unseen(weight: Tensor, bias: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """A head `[C, D]`, `[C]` that never predicts a class with no image in `count` `[C]`."""
    seen = count > 0
    return weight * seen[:, None], bias.where(seen, NEVER)
