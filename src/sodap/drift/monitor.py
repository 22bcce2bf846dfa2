"""A live drift monitor whose false-alarm rate holds however long it is watched."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sodap.errors import SodapError
from sodap.randomness import Randomness

SLOPES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
"""A bet pays 1 + slope (p - ½): negative slopes win on unusually high scores, positive on low."""

JUMPS = np.array([1e-3, 1e-2, 1e-1])
"""Shares of the capital that change their slope at each step; each has an equal start capital."""


class MonitorState(NamedTuple):
    """What a monitor says after a score."""

    seen: int
    """Scores since the calibration."""
    p_value: float
    """Rank of the newest score among all before it; uniform without drift."""
    log10_wealth: float
    """Evidence for drift; above log10(1 / alpha) there is an alarm."""
    alarm: bool
    """Whether the wealth has ever reached 1 / alpha; it stays so until a new monitor is made."""
    alarm_at: int | None
    """Value of `seen` at the alarm."""


class Monitor:
    """A conformal test martingale: a gambler who can only get rich if the scores drift.

    Each score is ranked among all scores before it, and then joins them. As long as scores are
    exchangeable, the rank is uniform and no bet on it wins on average, so P(wealth ever reaches
    1 / alpha) <= alpha (Ville's inequality). Only the scores are stored, one number each.
    """

    def __init__(
        self, calibration: Iterable[float] | Tensor = (), *, alpha: float = 0.01, seed: int = 0
    ) -> None:
        """Begin with scores of images that neither the model nor its score was fitted to."""
        if not 0 < alpha < 1:
            raise SodapError(f"alpha is a probability between 0 and 1, got {alpha}")
        self.alpha = alpha
        self.seed = seed
        self._scores = sorted(_finite(score) for score in map(float, calibration))
        self._calibrated = len(self._scores)
        shape = len(JUMPS), len(SLOPES)
        self._capital: NDArray[np.float64] = np.full(shape, 1 / math.prod(shape))
        self._log_scale = 0.0  # the wealth is exp(log_scale), the capital sums to 1
        self._alarm_at: int | None = None

    @property
    def seen(self) -> int:
        """Scores since the calibration."""
        return len(self._scores) - self._calibrated

    def update(self, score: float | Sequence[float] | Tensor) -> MonitorState:
        """Rank a score, bet, and keep it; several scores of one group count as their mean."""
        values = torch.as_tensor(score, dtype=torch.float64)
        if values.ndim > 1 or values.numel() == 0:
            raise SodapError(
                f"a monitor takes one score, or the scores [n] of one group, "
                f"got shape {list(values.shape)}"
            )
        p_value = self._rank(_finite(float(values.mean())))
        self._bet(p_value)
        if self._alarm_at is None and self._log_scale >= -math.log(self.alpha):
            self._alarm_at = self.seen
        log10_wealth = self._log_scale / math.log(10)
        return MonitorState(
            self.seen, p_value, log10_wealth, self._alarm_at is not None, self._alarm_at
        )

    def _rank(self, score: float) -> float:
        """Share of scores that are larger; ties, among them the score itself, share by chance."""
        low, high = bisect_left(self._scores, score), bisect_right(self._scores, score)
        count = len(self._scores) + 1
        # A number made from the place, so that no random state has to be saved.
        share = (Randomness(self.seed).number("rank", count) + 0.5) / 2**63
        p_value = (count - 1 - high + share * (high - low + 1)) / count
        self._scores.insert(high, score)
        return p_value

    def _bet(self, p_value: float) -> None:
        jump = JUMPS[:, None]
        held = self._capital.sum(1, keepdims=True) / len(SLOPES)
        capital = (1 - jump) * self._capital + jump * held
        capital *= 1 + SLOPES * (p_value - 0.5)
        wealth = float(capital.sum())
        self._log_scale += math.log(wealth)
        self._capital = capital / wealth

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything that is stored, for `sodap.storage.save_state`."""
        counts = [self.seed, self._calibrated, -1 if self._alarm_at is None else self._alarm_at]
        return {
            "scores": torch.tensor(self._scores, dtype=torch.float64),
            "capital": torch.from_numpy(self._capital.copy()),
            "level": torch.tensor([self.alpha, self._log_scale], dtype=torch.float64),
            "counts": torch.tensor(counts, dtype=torch.int64),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """A monitor that continues where the one of `to_tensors` stood."""
        try:
            scores, capital = tensors["scores"].tolist(), tensors["capital"].numpy()
            alpha, log_scale = tensors["level"].tolist()
            seed, calibrated, alarm_at = tensors["counts"].tolist()
        except (KeyError, ValueError) as error:
            raise SodapError(f"these tensors are not the state of a monitor: {error}") from error
        if capital.shape != (len(JUMPS), len(SLOPES)) or not 0 <= calibrated <= len(scores):
            raise SodapError("these tensors are not the state of a monitor of this version")
        monitor = cls(scores, alpha=alpha, seed=seed)
        monitor._calibrated = calibrated
        monitor._capital = capital.copy()
        monitor._log_scale = log_scale
        monitor._alarm_at = None if alarm_at < 0 else alarm_at
        return monitor


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise SodapError(f"a score must be a finite number, got {score}")
    return score
