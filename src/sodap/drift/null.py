"""The drift score of data without drift."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sodap.drift.score import drift_score
from sodap.drift.settings import DriftSettings
from sodap.drift.window import UsageWindow


class NullBand(NamedTuple):
    """Mean drift score of batches without drift, and the range that most batches fall into."""

    mean: float
    low: float
    high: float


def null_band(
    window: UsageWindow, settings: DriftSettings, quantile: float = 0.95
) -> NullBand | None:
    """Score each batch of the window against all other batches of the window.

    The mean is not 0: a normal variable is on average √(2/π) ≈ 0.8 standard deviations from its
    mean. Scores are means over layers; `quantile` is the share of batches inside the band. Returns
    None for a window with too few entries.
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
