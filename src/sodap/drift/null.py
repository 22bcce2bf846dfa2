"""What the score is when nothing drifts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sodap.drift.score import drift_score
from sodap.drift.settings import DriftSettings
from sodap.drift.window import UsageWindow


class NullBand(NamedTuple):
    """The mean drift score of batches without drift, and the range of most single batches."""

    mean: float
    low: float
    high: float


def null_band(
    window: UsageWindow, settings: DriftSettings, quantile: float = 0.95
) -> NullBand | None:
    """Score each batch of the window, as a mean over layers, against all others of the window.

    The null value is not 0: a normal variable lies √(2/π) ≈ 0.8 standard deviations from its mean.
    `quantile` is the share of batches inside the band. None for a window with too few entries.
    """
    entropies, sets = window.past_entropies, window.past_sets
    if window.filled <= settings.min_entries:
        return None
    scores = []
    for t in range(window.filled):
        others = np.arange(window.filled) != t
        past = entropies[:, others], sets[:, others]
        scores.append(drift_score(entropies[:, t], sets[:, t], *past, settings)[0].mean())
    low, high = np.quantile(scores, [(1 - quantile) / 2, (1 + quantile) / 2])
    return NullBand(float(np.mean(scores)), float(low), float(high))
