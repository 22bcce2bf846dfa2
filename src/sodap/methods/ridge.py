"""Ridge regression on frozen features: the reference that anything cleverer has to beat.

No gradient, no epochs, no forgetting by construction: it adds up second moments over all domains
and solves for the head. `rp-ridge` does so on a fixed random projection of the features.
"""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.base import (
    Asset,
    Batch,
    Method,
    MethodConfig,
    Observations,
    StageInfo,
    tensor_bytes,
)
from sodap.methods.parts.second_moments import SecondMoments, solve_ridge, with_constant
from sodap.methods.registry import register_method
from sodap.randomness import Randomness


class RidgeConfig(MethodConfig):
    """The penalty is not an option: it is chosen on the validation images of all stages."""


@register_method
class Ridge(Method):
    """A closed-form linear head on the frozen features of all domains so far."""

    name = "ridge"
    family = "reference"
    trains = "head, in closed form"
    stores = "second moments"
    Config = RidgeConfig
    learns_by_gradient = False

    weight: Tensor  # W [width + 1, C]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        width = self.feature_width
        self.train_sums = SecondMoments(classes, width)
        self.val_sums = SecondMoments(classes, width)
        self.register_buffer("weight", torch.zeros(width + 1, classes))

    @property
    def feature_width(self) -> int:
        return self.backbone.width

    def features(self, images: Tensor) -> Tensor:
        """`[B, feature_width]`, without gradient."""
        with torch.no_grad():
            return cast(Tensor, self.backbone(images)).float()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The squared error that the closed form minimises, for inspection."""
        target = torch.nn.functional.one_hot(batch.labels, self.classes).float()
        return {"square": (self(batch.images) - target).square().sum(1).mean()}

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)  # in the precision in which they were learned from
        with torch.autocast(images.device.type, enabled=False):
            return with_constant(features) @ self.weight

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        for sums, batches in ((self.train_sums, train), (self.val_sums, val)):
            for images, labels in batches:
                sums.update(self.features(images), labels)
        # Validation images of all stages decide: those of one small domain alone would mislead.
        head, penalty = solve_ridge(self.train_sums, self.val_sums)
        self.weight.copy_(head)
        return {"penalty": penalty}

    def stored(self) -> list[Asset]:
        size = tensor_bytes(self.train_sums, self.val_sums)
        return [Asset("second moments of the features", "statistics", size)]

    def trainable_count(self) -> int:
        return self.weight.numel()


class ProjectedRidgeConfig(RidgeConfig):
    projection: int = Field(2000, ge=1, le=20_000, description="random features")


@register_method
class ProjectedRidge(Ridge):
    """The closed-form head on ReLU features of a fixed random projection."""

    name = "rp-ridge"
    trains = "head on random features, in closed form"
    Config = ProjectedRidgeConfig
    config: ProjectedRidgeConfig

    projection: Tensor  # [D, width]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        drawn = torch.randn(
            backbone.width, self.feature_width, generator=randomness.generator("projection")
        )
        self.register_buffer("projection", drawn / backbone.width**0.5)

    @property
    def feature_width(self) -> int:
        return self.config.projection

    def features(self, images: Tensor) -> Tensor:
        features = super().features(images)
        with torch.autocast(images.device.type, enabled=False):
            return (features @ self.projection).relu()
