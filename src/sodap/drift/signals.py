"""The two signals that PUDD reads off the usage of prompts (section 3.3.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-10  # the paper's; entmax gives exact zeros, whose logarithm must exist


def selection_entropy(usage: NDArray[np.float64]) -> NDArray[np.float64]:
    """H = -Σ w log(w + ε) of mean selection weights `[..., N]`, as `[...]`."""
    entropy: NDArray[np.float64] = -np.sum(usage * np.log(usage + EPSILON), axis=-1)
    return entropy


def usage_set(usage: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """S = {i: w_i > τ_s}, the prompts that carry weight, as a mask `[..., N]`."""
    return usage > threshold


def iou(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> NDArray[np.float64]:
    """|A ∩ B| / |A ∪ B| of sets given as masks `[..., N]`; two empty sets are the same: 1."""
    union = np.sum(a | b, axis=-1)
    return np.where(union == 0, 1.0, np.sum(a & b, axis=-1) / np.maximum(union, 1))
