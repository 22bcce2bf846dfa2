"""Ridge regression on frozen features, or on a random projection of them.

The head is solved from second moments over all domains: no gradient, no epochs, no forgetting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from sodap.methods.base import (
    Asset,
    Method,
    MethodConfig,
    Observations,
    StageInfo,
    tensor_bytes,
)
from sodap.methods.parts.last_blocks import read_last_blocks, width_of_last_blocks
from sodap.methods.parts.second_moments import SecondMoments, solve_ridge, with_constant
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


LAST_BLOCKS = 4
"""Number of blocks that `features=last4` reads."""


class RidgeConfig(MethodConfig):
    """What the head reads; its penalty is chosen on the validation images of all stages."""

    features: Literal["cls", "last4"] = Field(
        "cls",
        description="cls: the CLS feature; last4: CLS and mean patch token of the last four blocks",
    )


@register_method
class Ridge(Method):
    """Closed-form linear head on the frozen features of all domains so far."""

    name = "ridge"
    family = "reference"
    trains = "head, in closed form"
    stores = "second moments"
    Config = RidgeConfig
    learns_by_gradient = False

    config: RidgeConfig
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
    def network_width(self) -> int:
        """Width of what is read from the network."""
        if self.config.features == "cls":
            return self.backbone.width
        return width_of_last_blocks(self.backbone, LAST_BLOCKS)

    @property
    def feature_width(self) -> int:
        """Width of `features`."""
        return self.network_width

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Features `[B, feature_width]` that the head reads."""
        if self.config.features == "cls":
            return self.frozen_features(images)
        return read_last_blocks(self.backbone, self.backbone.embed(images), LAST_BLOCKS)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)  # under autocast, as in `end_stage`
        with torch.autocast(images.device.type, enabled=False):
            return with_constant(features) @ self.weight

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        for sums, observations in ((self.train_sums, train), (self.val_sums, val)):
            for features, labels in observations.map(self.features):
                sums.update(features, labels)
        # Validation images of all stages: those of one small domain would be misleading.
        head, penalty = solve_ridge(self.train_sums, self.val_sums)
        self.weight.copy_(head)
        return {"penalty": penalty}

    def stored(self) -> list[Asset]:
        size = tensor_bytes(self.train_sums, self.val_sums)
        return [Asset("second moments of the features", "statistics", size)]

    def trainable_count(self) -> int:
        return self.weight.numel()


class ProjectedRidgeConfig(RidgeConfig):
    """The width of the projection."""

    projection: int = Field(2000, ge=1, le=20_000, description="number of random features")


@register_method
class ProjectedRidge(Ridge):
    """Closed-form linear head on ReLU features of a fixed random projection."""

    name = "rp-ridge"
    trains = "head on random features, in closed form"
    Config = ProjectedRidgeConfig
    config: ProjectedRidgeConfig

    projection: Tensor  # [D, width]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        width = self.network_width
        drawn = torch.randn(width, self.feature_width, generator=randomness.generator("projection"))
        self.register_buffer("projection", drawn / width**0.5)

    @property
    def feature_width(self) -> int:
        return self.config.projection

    def features(self, images: Tensor) -> Tensor:
        features = super().features(images)
        with torch.autocast(images.device.type, enabled=False):
            return (features @ self.projection).relu()
