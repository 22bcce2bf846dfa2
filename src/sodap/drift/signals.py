"""The two signals of PUDD: selection entropy and usage set (section 3.3.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-10
"""The paper's ε: entmax gives exact zeros, which have no logarithm."""


def selection_entropy(usage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy H = -Σ w log(w + ε) of mean routing weights: `[..., N] -> [...]`."""
    entropy: NDArray[np.float64] = -np.sum(usage * np.log(usage + EPSILON), axis=-1)
    return entropy


def usage_set(
    usage: NDArray[np.float64], threshold: float | NDArray[np.floating]
) -> NDArray[np.bool_]:
    """Usage set S = {i: w_i > τ_s} as a mask `[..., N]`; τ_s is a number, or one per prompt."""
    return usage > threshold


def iou(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Intersection over union of sets given as masks `[..., N]`; 1 for two empty sets."""
    union = np.sum(a | b, axis=-1)
    return np.where(union == 0, 1.0, np.sum(a & b, axis=-1) / np.maximum(union, 1))
