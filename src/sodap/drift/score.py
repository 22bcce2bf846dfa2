"""The drift score D_t of a batch against the batches before it (section 3.3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sodap.drift.settings import DriftSettings
from sodap.drift.signals import EPSILON, iou, selection_entropy, usage_set
from sodap.drift.window import UsageWindow
from sodap.errors import SodapError

LARGEST_WEIGHT = 1.01
"""Largest accepted weight: a mean of half-precision weights may be slightly above 1."""


@dataclass(frozen=True)
class DriftScores:
    """The scores D_t and signals H_t and IoU_t of T batches in L layers, each `[T, L]`."""

    scores: NDArray[np.float64]
    entropy: NDArray[np.float64]
    overlap: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """D̄, the mean over layers and batches, equation (19); 0 without a batch."""
        return float(self.scores.mean()) if self.scores.size else 0.0


def drift_score(
    entropy: NDArray[np.float64],
    used: NDArray[np.bool_],
    past_entropies: NDArray[np.float64],
    past_sets: NDArray[np.bool_],
    settings: DriftSettings,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Score D_t `[L]`, equation (18), and IoU_t `[L]` of entropies `[L]` and usage sets `[L, N]`.

    The past is given as entropies `[L, n]` and sets `[L, n, N]`; n may be 0.
    """
    layers, entries, prompts = past_sets.shape
    # Without a past there is nothing to compare with: both terms are 0.
    overlap = iou(used, np.logical_or.reduce(past_sets, axis=1)) if entries else np.ones(layers)
    deviation = np.zeros(layers)
    if entries >= settings.needed:
        # For almost identical batches std is near 0, and rounding alone would give a huge score.
        std = np.maximum(past_entropies.std(axis=1), settings.std_floor * np.log(prompts))
        deviation = np.abs(entropy - past_entropies.mean(axis=1)) / (std + EPSILON)
    mismatch = 1 / np.maximum(overlap, settings.overlap_floor) - 1
    score = settings.entropy_weight * deviation + settings.overlap_weight * mismatch
    return score, overlap


class DriftDetector:
    """Scores one batch after the other against a sliding window, in each of L layers."""

    def __init__(
        self,
        layers: int,
        prompts: int,
        settings: DriftSettings | None = None,
        window: UsageWindow | None = None,
    ) -> None:
        self.settings = settings or DriftSettings()
        self.window = window or UsageWindow(layers, prompts, self.settings.window - 1)
        self.layers = layers
        expected, found = (layers, self.settings.window - 1), self.window.entropies.shape
        if found != expected:
            raise SodapError(
                f"the window holds {found[1]} entries of {found[0]} layers, "
                f"but the detector needs {expected[1]} of {expected[0]}"
            )
        self.window.widen(prompts)

    def observe(self, usage: ArrayLike, used: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the score `[L]` of one batch's usage `[L, N]`, and add the batch to the window.

        Each row of `usage` holds mean routing weights and sums to 1. `used` `[L, N]` are the usage
        sets; by default the prompts above the threshold.
        """
        return self._observe(usage, used)[0]

    def scan(
        self, usages: Iterable[ArrayLike], used: Iterable[ArrayLike] | None = None
    ) -> DriftScores:
        """Observe T batches one after the other; usages, and sets if given, are `[T, L, N]`."""
        batches = (
            ((usage, None) for usage in usages) if used is None else zip(usages, used, strict=True)
        )
        rows = np.array([self._observe(usage, members) for usage, members in batches])
        scores, entropy, overlap = rows.reshape(-1, 3, self.layers).swapaxes(0, 1)  # T may be 0
        return DriftScores(scores, entropy, overlap)

    def _observe(self, usage: ArrayLike, used: ArrayLike | None) -> tuple[NDArray[np.float64], ...]:
        """D_t, H_t and IoU_t, each `[L]`."""
        weights = self._checked(usage)
        members = self._usage_set(weights) if used is None else np.asarray(used, dtype=np.bool_)
        if members.shape != weights.shape:
            raise SodapError(
                f"usage sets have shape {list(members.shape)}, but usage {list(weights.shape)}"
            )
        self.window.widen(weights.shape[1])
        entropy = selection_entropy(weights)
        past = self.window.past_entropies, self.window.past_sets
        score, overlap = drift_score(entropy, members, *past, self.settings)
        self.window.add(entropy, members)
        return score, entropy, overlap

    def _usage_set(self, weights: NDArray[np.float64]) -> NDArray[np.bool_]:
        # The mean weight is 1 / N: in a large pool no prompt would reach a fixed threshold.
        unit = 1 / weights.shape[1] if self.settings.relative_threshold else 1.0
        return usage_set(weights, self.settings.usage_threshold * unit)

    def _checked(self, usage: ArrayLike) -> NDArray[np.float64]:
        weights = np.asarray(usage, dtype=np.float64)
        if weights.ndim != 2 or weights.shape[0] != self.layers or weights.shape[1] == 0:
            raise SodapError(
                f"usage must have shape [{self.layers} layers, prompts], got {list(weights.shape)}"
            )
        if not np.all((weights >= 0) & (weights <= LARGEST_WEIGHT)):  # also false for NaN
            raise SodapError("usage must consist of mean routing weights, numbers from 0 to 1")
        return weights
