"""Statistics over seeds: the mean of a score, and the difference of two methods.

All intervals over seeds are Student's, which are as wide for few seeds as they have to be if the
scores are normally distributed. Resampling three seeds would give an interval from the lowest to
the highest, which contains the true mean in 75 % of cases only.

Only the seed varies here: these intervals are about other seeds on the same test images. For other
test images see `sodap.evaluation.intervals`, for both `sodap.evaluation.bootstrap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.evaluation.proportions import LEVEL

MIN_SEEDS = 3
"""Fewest common seeds for which a difference gets an interval and a p value."""
ALPHA = 1 - LEVEL
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
    """Student's t interval of the mean; None with fewer than `MIN_SEEDS` seeds."""
    high: float | None
    p: float | None
    """P value of Student's paired t test, two-sided.

    None with fewer than `MIN_SEEDS` seeds, and if the difference is the same for every seed."""

    @property
    def sign(self) -> int:
        """1 or -1 if the interval excludes 0, else 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)

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
    # Imported on demand: it takes longer than to read a record.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    sd = float(scores.std(ddof=1))
    half = float(stdtrit(count - 1, 0.5 + level / 2)) * sd / count**0.5
    return SeedMean(count, mean, sd, mean - half, mean + half)


def paired_difference(
    first: Sequence[float], second: Sequence[float], level: float = LEVEL
) -> PairedDifference:
    """`first` minus `second`, where the k-th scores of both come from the same seed."""
    if len(first) != len(second):
        raise SodapError(f"cannot pair {len(first)} scores with {len(second)}")
    found = mean_over_seeds(np.subtract(first, second).tolist(), level)
    if found.count < MIN_SEEDS:
        return PairedDifference(found.count, found.mean, None, None, None)
    return PairedDifference(found.count, found.mean, found.low, found.high, _p_value(found))


def _p_value(found: SeedMean) -> float | None:
    """P value of Student's t test that the mean is 0, two-sided."""
    from scipy.special import stdtr

    assert found.sd is not None
    if found.sd < SAME:
        return 1.0 if abs(found.mean) < SAME else None
    t = found.mean / (found.sd / found.count**0.5)
    return float(2 * stdtr(found.count - 1, -abs(t)))


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


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
        raise SodapError(f"a comparison needs one or more finite scores, got {list(values)}")
    return scores
