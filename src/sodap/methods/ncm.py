"""Nearest class mean on frozen features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.methods.base import Asset, MethodConfig, tensor_bytes
from sodap.methods.parts.closed_form import ClosedFormHead, without_unseen
from sodap.methods.registry import register_method
from sodap.preserving import ClassStatistics
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class NearestClassMeanConfig(MethodConfig):
    """The distance to compare by."""

    distance: Literal["cosine", "euclid"] = Field(
        "cosine", description="angle, or Euclidean distance, between a feature and a class mean"
    )


@register_method
class NearestClassMean(ClosedFormHead):
    """The class with the nearest mean feature over all domains so far."""

    name = "ncm"
    stores = "class statistics"
    Config = NearestClassMeanConfig
    config: NearestClassMeanConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.statistics = ClassStatistics(classes, backbone.width)

    def features(self, images: Tensor) -> Tensor:
        """Features `[B, D]`, of unit length for cosine so that all images count equally."""
        features = super().features(images)
        return F.normalize(features) if self.config.distance == "cosine" else features

    def update(self, features: Tensor, labels: Tensor) -> None:
        self.statistics.update(features, labels)

    @torch.no_grad()
    def solve(self) -> tuple[Tensor, Tensor]:
        """-|x - μ|² / 2σ² without its part common to all classes, which is linear in x.

        σ² is the mean variance of a feature within its class. It does not change predictions, but
        makes the softmax the posterior of spherical classes of equal size.
        """
        mean, count = self.statistics.mean, self.statistics.count
        if self.config.distance == "cosine":
            mean = F.normalize(mean)  # with |μ| = 1 the smallest distance is the smallest angle
        numbers = count.sum().clamp(min=1) * mean.shape[1]
        variance = (self.statistics.squares.sum() / numbers).clamp(min=1e-6)
        bias = -mean.square().sum(1) / 2
        return without_unseen(mean / variance, bias / variance, count)

    def stored(self) -> list[Asset]:
        size = tensor_bytes(self.statistics)
        return [Asset("class means and variances", "statistics", size)]
