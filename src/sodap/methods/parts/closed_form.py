"""Base class of methods that solve for a linear head at the end of a stage (`ncm`, `slda`).

The head follows from sums over all domains so far, so the order of the domains does not matter.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.methods.base import Method, MethodConfig, Observations, StageInfo
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT

UNSEEN_LOGIT = -1e30
"""Logit of a class without any training image: below all others, but finite."""


class ClosedFormHead(Method):
    """Linear head computed from sums over the training features of all domains."""

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
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features `[B, D]` with labels `[B]` to the sums."""

    @abstractmethod
    def solve(self) -> tuple[Tensor, Tensor]:
        """Weight `[C, D]` and bias `[C]` from the sums, in float64."""

    def features(self, images: Tensor) -> Tensor:
        """Features `[B, D]` that the head reads."""
        return self.frozen_features(images)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)  # under autocast, as in `end_stage`
        with torch.autocast(images.device.type, enabled=False):
            return F.linear(features, self.weight, self.bias)

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        for features, labels in train.map(self.features):
            self.update(features, labels)
        weight, bias = self.solve()
        self.weight.copy_(weight)
        self.bias.copy_(bias)
        return {}

    def trainable_count(self) -> int:
        return self.weight.numel() + self.bias.numel()


def without_unseen(weight: Tensor, bias: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Head `[C, D]`, `[C]` that never predicts a class with `count` `[C]` 0."""
    seen = count > 0
    return weight * seen[:, None], bias.where(seen, UNSEEN_LOGIT)
