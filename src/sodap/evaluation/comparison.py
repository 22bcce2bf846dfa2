"""Statistics over seeds: the mean of a score, and the difference of two methods.

Only the seed varies here. A record holds confusion matrices, not the prediction for each image, so
these intervals are about other seeds on the same test images. For other test images see
`sodap.evaluation.resampling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.randomness import Randomness

MIN_SEEDS = 3
"""Fewest common seeds for which a difference gets an interval and a p value."""
LEVEL = 0.95
ALPHA = 1 - LEVEL
DRAWS = 20_000
SAME = 1e-9
"""Scores that differ by less are equal: no image was classified differently."""


@dataclass(frozen=True)
class SeedMean:
    """Mean of a score over seeds."""

    count: int
    mean: float
    sd: float | None
    """Sample standard deviation; None for a single seed."""
    low: float | None
    """Student's t interval of the mean; None for a single seed."""
    high: float | None


@dataclass(frozen=True)
class PairedDifference:
    """Difference of two methods, paired by seed."""

    count: int
    mean: float
    low: float | None
    """Bootstrap interval of the mean; None with fewer than `MIN_SEEDS` seeds."""
    high: float | None
    student: SeedMean
    """The differences with Student's interval."""
    p: float | None
    """P value of Student's paired t test, two-sided.

    None with fewer than `MIN_SEEDS` seeds, and if the difference is the same for every seed."""

    @property
    def sign(self) -> int:
        """1 or -1 if both the bootstrap interval and Student's interval exclude 0, else 0.

        With three seeds the bootstrap is too narrow, and Student's interval assumes a normal
        distribution. Requiring both is safer than either.
        """
        if self.low is None or self.high is None:
            return 0
        assert self.student.low is not None
        assert self.student.high is not None
        above = min(self.low, self.student.low) > 0
        below = max(self.high, self.student.high) < 0
        return int(above) - int(below)

    @property
    def significant(self) -> bool:
        """Whether the difference is larger than the noise between seeds, by p and `sign`."""
        return self.p is not None and self.p < ALPHA and self.sign != 0


def mean_over_seeds(values: Sequence[float], level: float = LEVEL) -> SeedMean:
    """Mean, standard deviation and Student's t interval of a score."""
    scores = _finite(values)
    count, mean = len(scores), float(scores.mean())
    if count == 1:
        return SeedMean(1, mean, None, None, None)
    sd = float(scores.std(ddof=1))
    half = float(_stats().t.ppf(0.5 + level / 2, count - 1)) * sd / count**0.5
    return SeedMean(count, mean, sd, mean - half, mean + half)


def paired_difference(
    first: Sequence[float], second: Sequence[float], level: float = LEVEL, draws: int = DRAWS
) -> PairedDifference:
    """`first` minus `second`, where the k-th scores of both come from the same seed.

    The interval is a percentile bootstrap with the wider percentiles of `tail`. With five seeds,
    plain percentiles cover the true mean in 83 % of cases and these in about 92 %. No resampled
    mean exceeds the largest difference, so n seeds cannot reach more than 1 - 2^(1-n): 94 % with
    five, 75 % with three.
    """
    if len(first) != len(second):
        raise SodapError(f"cannot pair {len(first)} scores with {len(second)}")
    differences = _finite(np.subtract(first, second).tolist())
    student = mean_over_seeds(differences.tolist(), level)
    if student.count < MIN_SEEDS:
        return PairedDifference(student.count, student.mean, None, None, student, None)
    low, high = (
        _stats()
        .bootstrap(
            (differences,),
            np.mean,
            n_resamples=draws,
            confidence_level=1 - 2 * tail(student.count, level),
            method="percentile",
            rng=np.random.default_rng(Randomness(0).number("bootstrap")),
        )
        .confidence_interval
    )
    assert student.sd is not None
    p = None
    if student.sd >= SAME:
        p = float(_stats().ttest_1samp(differences, 0.0).pvalue)
    elif abs(student.mean) < SAME:
        p = 1.0
    return PairedDifference(student.count, student.mean, float(low), float(high), student, p)


def tail(count: int, level: float = LEVEL) -> float:
    """Share of resampled means to cut off at each end of an interval, for `count` scores.

    The bootstrap underestimates the spread of n scores by √((n-1)/n) and ignores the heavy tails of
    Student's t. Φ(-t_{n-1} √(n/(n-1))) corrects both for normal scores (the "expanded percentile"
    of Hesterberg, 2015).
    """
    t = float(_stats().t.ppf(0.5 + level / 2, count - 1))
    return float(_stats().norm.cdf(-t * (count / (count - 1)) ** 0.5))


def holm(differences: Sequence[PairedDifference | None]) -> list[PairedDifference | None]:
    """The differences with p values corrected for their number (Holm's method).

    The smallest p value is multiplied by the number of comparisons, the next by one less, and so
    on; none becomes smaller than the one before it. Differences without a p value do not count.
    """
    tested = sorted(
        (each.p, place)
        for place, each in enumerate(differences)
        if each is not None and each.p is not None
    )
    found = list(differences)
    largest = 0.0
    for rank, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        each = found[place]
        assert each is not None
        found[place] = replace(each, p=largest)
    return found


def _stats() -> Any:
    """`scipy.stats`, imported on demand, since that takes longer than to read a record."""
    from scipy import stats  # type: ignore[import-untyped]

    return stats


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
        raise SodapError(f"a comparison needs one or more finite scores, got {list(values)}")
    return scores
