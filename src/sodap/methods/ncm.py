"""Nearest class mean: the simplest thing that can be done with frozen features."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.base import Asset, MethodConfig, tensor_bytes
from sodap.methods.parts.closed_form import ClosedFormHead, without_unseen
from sodap.methods.registry import register_method
from sodap.preserving import ClassStatistics
from sodap.randomness import Randomness


class NearestClassMeanConfig(MethodConfig):
    """What near means."""

    distance: Literal["cosine", "euclid"] = Field(
        "cosine", description="angle between feature and class mean, or distance in a straight line"
    )


@register_method
class NearestClassMean(ClosedFormHead):
    """The class whose mean feature, over all domains so far, is the nearest."""

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
        """Of length 1 for the angle, so that in a class mean all images count alike."""
        features = super().features(images)
        return F.normalize(features) if self.config.distance == "cosine" else features

    def take_in(self, features: Tensor, labels: Tensor) -> None:
        self.statistics.update(features, labels)

    @torch.no_grad()
    def solve(self) -> tuple[Tensor, Tensor]:
        """-|x - μ|² / 2σ² without the part that all classes share is linear in x.

        σ², the mean variance of a feature within its class, changes no prediction. It makes the
        softmax of the logits what Bayes' rule gives for round classes of equal size.
        """
        known = self.statistics
        mean = known.mean
        if self.config.distance == "cosine":
            mean = F.normalize(mean)  # |μ| = 1: the nearest in a line is the nearest in angle
        seen = known.count.sum().clamp(min=1) * mean.shape[1]
        variance = (known.squares.sum() / seen).clamp(min=1e-6)  # one image a class has none
        bias = -mean.square().sum(1) / 2
        return without_unseen(mean / variance, bias / variance, known.count)

    def stored(self) -> list[Asset]:
        size = tensor_bytes(self.statistics)
        return [Asset("class means and variances", "statistics", size)]
