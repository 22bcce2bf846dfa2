"""Does a probability mean what it says: of all answers given with 0.8, are 8 in 10 right?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sodap.errors import SodapError

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Answers sorted into equal ranges of confidence; empty ranges have a count of 0."""

    counts: NDArray[np.int64]
    """`[bins]`"""
    confidence: NDArray[np.float64]
    """Mean confidence of each range `[bins]`; 0 where it is empty."""
    accuracy: NDArray[np.float64]
    """Share of right answers in each range `[bins]`; 0 where it is empty."""

    @property
    def error(self) -> float:
        """ECE: the mean distance between confidence and accuracy, every answer counted once."""
        distance = np.abs(self.confidence - self.accuracy)
        return float((self.counts * distance).sum() / self.counts.sum())

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy; below 0 for a model that is better than it believes."""
        distance = self.confidence - self.accuracy
        return float((self.counts * distance).sum() / self.counts.sum())


def reliability(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> Reliability:
    """From the confidence `[N]` of each answer and whether it was right `[N]`.

    A range holds its upper end, the first one 0 as well.
    """
    sure, hit = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    if sure.ndim != 1 or sure.shape != hit.shape or not len(sure):
        raise SodapError("calibration needs one confidence and one outcome for each answer")
    if not ((sure >= 0) & (sure <= 1)).all():
        raise SodapError("a confidence lies between 0 and 1")
    place = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    some = np.maximum(counts, 1)
    return Reliability(
        counts,
        np.bincount(place, sure, minlength=bins) / some,
        np.bincount(place, hit, minlength=bins) / some,
    )
