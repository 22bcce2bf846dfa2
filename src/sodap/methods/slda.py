"""Linear discriminant analysis that goes on from domain to domain (Hayes & Kanan, 2020).

Each class is a Gaussian around its mean; all classes share one covariance. Ridge regression and
this keep the same sums. They differ in the question: least squares to one-hot targets there, the
most likely class here.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.base import Asset, MethodConfig, tensor_bytes
from sodap.methods.parts.closed_form import ClosedFormHead, without_unseen
from sodap.methods.parts.second_moments import SecondMoments
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

# Less scatter than this share of the features' energy is a rounding error of the sums.
ROUNDING = 1e-9


class StreamingLDAConfig(MethodConfig):
    """How far to trust the covariance, and how likely a class is before an image is seen."""

    shrinkage: float = Field(
        1e-4, ge=1e-6, le=1, description="ε: share of a round covariance that is mixed in"
    )
    priors: Literal["uniform", "counts"] = Field(
        "uniform", description="all classes alike (paper), or as often as they were seen"
    )


@register_method
class StreamingLDA(ClosedFormHead):
    """The most likely class if all classes are Gaussians with one common covariance."""

    name = "slda"
    stores = "second moments"
    Config = StreamingLDAConfig
    config: StreamingLDAConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.sums = SecondMoments(classes, backbone.width)

    def take_in(self, features: Tensor, labels: Tensor) -> None:
        self.sums.update(features, labels)

    @torch.no_grad()
    def solve(self) -> tuple[Tensor, Tensor]:
        """w = Λμ and b = -μᵀΛμ / 2 + log prior, with Λ = [(1 - ε) Σ + ε mean(diag Σ) I]⁻¹.

        The round part is counted in the features' own variance, so that one ε means the same for
        every backbone.
        """
        # The sums' last feature is a constant 1: its rows hold sums and counts.
        count = self.sums.cross[-1]  # [C]
        mean = (self.sums.cross[:-1] / count.clamp(min=1)).T  # μ [C, D]
        energy = self.sums.gram[:-1, :-1]
        images = self.sums.count.clamp(min=1)
        covariance = (energy - (mean.T * count) @ mean) / images  # Σ [D, D]
        power = energy.diagonal().mean() / images
        variance = covariance.diagonal().mean()
        # Without scatter (one image a class) any round covariance will do.
        variance = variance.where(variance > ROUNDING * power, power)

        share = self.config.shrinkage
        round_part = share * variance * torch.eye(len(covariance)).to(covariance)
        weight = torch.linalg.solve((1 - share) * covariance + round_part, mean.T).T
        bias = -(weight * mean).sum(1) / 2
        if self.config.priors == "counts":
            bias = bias + (count / images).clamp(min=torch.finfo(count.dtype).tiny).log()
        return without_unseen(weight, bias, count)

    def stored(self) -> list[Asset]:
        return [Asset("second moments of the features", "statistics", tensor_bytes(self.sums))]
