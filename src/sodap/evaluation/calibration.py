"""Calibration: whether predictions made with a confidence of 0.8 are right 8 times in 10."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sodap.errors import SodapError

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Predictions in equal-width bins of confidence."""

    counts: NDArray[np.int64]
    """Predictions per bin `[bins]`."""
    confidence: NDArray[np.float64]
    """Mean confidence per bin `[bins]`; 0 in empty bins."""
    accuracy: NDArray[np.float64]
    """Accuracy per bin `[bins]`; 0 in empty bins."""

    @property
    def error(self) -> float:
        """Expected calibration error (ECE): mean distance of confidence and accuracy."""
        return self._mean(np.abs(self.confidence - self.accuracy))

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy; negative for an underconfident model."""
        return self._mean(self.confidence - self.accuracy)

    def _mean(self, values: NDArray[np.float64]) -> float:
        return float((self.counts * values).sum() / self.counts.sum())


def reliability(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> Reliability:
    """Bin predictions by their confidence `[N]`; `right` `[N]` says which are correct.

    A bin includes its upper edge, and the first bin also includes 0.
    """
    sure, hit = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    if sure.ndim != 1 or sure.shape != hit.shape or not len(sure):
        raise SodapError("calibration needs one confidence and one outcome for each prediction")
    if not ((sure >= 0) & (sure <= 1)).all():
        raise SodapError("a confidence must lie between 0 and 1")
    place = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    divisor = np.maximum(counts, 1)
    return Reliability(
        counts,
        np.bincount(place, sure, minlength=bins) / divisor,
        np.bincount(place, hit, minlength=bins) / divisor,
    )
