"""Streaming linear discriminant analysis (Hayes and Kanan, 2020) on frozen features.

Each class is a Gaussian around its mean, and all classes share one covariance. The sums are those
of ridge regression; the head is that of the most likely class instead of least squares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from sodap.methods.base import Asset, MethodConfig, tensor_bytes
from sodap.methods.parts.closed_form import ClosedFormHead, without_unseen
from sodap.methods.parts.second_moments import SecondMoments
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT

ROUNDING = 1e-9
"""Variance below this share of the features' mean square is rounding error of the sums."""


class StreamingLDAConfig(MethodConfig):
    """Shrinkage of the covariance and class priors."""

    shrinkage: float = Field(
        1e-4, ge=1e-6, le=1, description="ε, share of a spherical covariance that is mixed in"
    )
    priors: Literal["uniform", "counts"] = Field(
        "uniform", description="equal class priors (as published), or class frequencies"
    )


@register_method
class StreamingLDA(ClosedFormHead):
    """The most likely class if all classes are Gaussians with a common covariance."""

    name = "slda"
    stores = "second moments"
    Config = StreamingLDAConfig
    config: StreamingLDAConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.sums = SecondMoments(classes, backbone.width)

    def update(self, features: Tensor, labels: Tensor) -> None:
        self.sums.update(features, labels)

    @torch.no_grad()
    def solve(self) -> tuple[Tensor, Tensor]:
        """w = Λμ and b = -μᵀΛμ / 2 + log prior, with Λ = [(1 - ε) Σ + ε mean(diag Σ) I]⁻¹.

        The spherical part is in units of the features' variance, so that ε means the same for
        every backbone.
        """
        # The last feature of the sums is a constant 1: its row holds the class counts.
        count = self.sums.cross[-1]  # [C]
        mean = (self.sums.cross[:-1] / count.clamp(min=1)).T  # μ [C, D]
        energy = self.sums.gram[:-1, :-1]
        images = self.sums.count.clamp(min=1)
        covariance = (energy - (mean.T * count) @ mean) / images  # Σ [D, D]
        power = energy.diagonal().mean() / images
        variance = covariance.diagonal().mean()
        # Without variance (one image per class) any spherical covariance gives the same classes.
        variance = variance.where(variance > ROUNDING * power, power)

        share = self.config.shrinkage
        spherical = share * variance * torch.eye(len(covariance)).to(covariance)
        weight = torch.linalg.solve((1 - share) * covariance + spherical, mean.T).T
        bias = -(weight * mean).sum(1) / 2
        if self.config.priors == "counts":
            bias = bias + (count / images).clamp(min=torch.finfo(count.dtype).tiny).log()
        return without_unseen(weight, bias, count)

    def stored(self) -> list[Asset]:
        return [Asset("second moments of the features", "statistics", tensor_bytes(self.sums))]
