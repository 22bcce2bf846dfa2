"""RanPAC (McDonnell et al., 2023): adapt in stage 1, project at random, and solve for the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from sodap.methods.base import MethodConfig
from sodap.methods.parts.first_session import FirstSessionConfig, FirstSessionRidge
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class RanPACConfig(FirstSessionConfig):
    """The residual of stage 1 and the width of the projection."""

    projection: int = Field(2000, ge=1, le=20_000, description="M, number of random features")


@register_method
class RanPAC(FirstSessionRidge):
    """Ridge regression on random ReLU features of a network that stage 1 adapted."""

    name = "ranpac"
    Config = RanPACConfig
    folds, held_out = 5, 1  # as published: four fifths to fit, one fifth to choose the penalty

    config: RanPACConfig
    projection: Tensor  # [D, M]

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
        features: Tensor = self.backbone(images, lora=self.lora)
        return (features.double() @ self.projection.double()).relu()
