"""Class-wise mean and variance of features in one pass, equations (10) and (11)."""

from __future__ import annotations

import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.preserving.exact import ExactModule


class ClassStatistics(ExactModule):
    """Count, mean and sum of squared deviations of the features of each class.

    Welford's update adds one feature at a time; Chan's formula adds a batch, or the statistics of
    another stage, with the same result. Everything is float64, so that the order in which features
    arrive makes no visible difference.
    """

    count: Tensor  # n [C]
    mean: Tensor  # mu [C, D]
    squares: Tensor  # Q [C, D]

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(classes, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(classes, width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(classes, width, dtype=torch.float64))

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features `[B, D]` with classes `labels` `[B]`."""
        classes, width = self.mean.shape
        if features.ndim != 2 or features.shape[1] != width or labels.shape != features.shape[:1]:
            raise SodapError(
                f"statistics of width {width} need features [B, {width}] and labels [B], "
                f"got {list(features.shape)} and {list(labels.shape)}"
            )
        features = features.double()
        # A matrix product always adds in the same order; a scatter on a GPU does not.
        member = (labels == torch.arange(classes, device=labels.device)[:, None]).double()  # [C, B]
        count = member.sum(dim=1)
        mean = member @ features / count.clamp(min=1)[:, None]
        squares = member @ (features - mean[labels]).square()
        self._merge(count, mean, squares)

    @torch.no_grad()
    def merge(self, other: ClassStatistics) -> None:
        """Add the statistics of other features; the result is that of one pass over both."""
        if other.mean.shape != self.mean.shape:
            raise SodapError(
                f"statistics of shape {list(other.mean.shape)} cannot be merged "
                f"into statistics of shape {list(self.mean.shape)}"
            )
        self._merge(other.count, other.mean, other.squares)

    def _merge(self, count: Tensor, mean: Tensor, squares: Tensor) -> None:
        """Apply Chan's formula to the count `[C]`, mean and squares `[C, D]` of new features."""
        total = self.count + count
        share = (count / total.clamp(min=1))[:, None]
        delta = mean - self.mean
        self.squares += squares + delta.square() * self.count[:, None] * share
        self.mean += delta * share
        self.count.copy_(total)

    @property
    def variance(self) -> Tensor:
        """Unbiased variance `[C, D]`; 0 for classes with fewer than two features."""
        return self.squares / (self.count - 1).clamp(min=1)[:, None]  # Q is 0 for n < 2

    @property
    def observed(self) -> Tensor:
        """Mask of the classes with at least one feature, `[C]`."""
        return self.count > 0
