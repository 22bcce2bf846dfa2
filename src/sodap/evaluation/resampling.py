"""Bootstrap intervals of a run's metrics over its test images.

The same images are evaluated after every stage, so the entries of a column of R are correlated. An
image is therefore resampled with its outcomes after all stages and, in a comparison, in both runs.

The intervals are about other test images of the same domains, not about other seeds. They assume
independent images; if a patient has several, the intervals are too narrow.

`scipy.stats.bootstrap` resamples one axis of independent samples and evaluates the statistic on
every resample. Here the resampled counts of outcome patterns are enough, which takes the same time
for any number of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.evaluation.matrix import summary
from sodap.randomness import Randomness

LEVEL = 0.95
DRAWS = 2000

Outcomes = Sequence[NDArray[np.bool_]]
"""For each domain `[T, N]`: which of its N test images are right after each of T stages."""


class Interval(NamedTuple):
    """Ends of an interval."""

    low: float
    high: float


def draw_results(right: Outcomes, draws: int = DRAWS) -> NDArray[np.float64]:
    """Resampled R `[draws, T, domains]`.

    Drawing N images with replacement is drawing how often each pattern of outcomes occurs, which is
    multinomial.
    """
    generator = np.random.default_rng(Randomness(0).number("bootstrap of test images"))
    columns = []
    for outcomes in right:
        table = np.asarray(outcomes, bool)
        if table.ndim != 2 or not table.size:
            raise SodapError("the outcomes of a domain must be [stages, images] and not empty")
        patterns, counts = np.unique(table, axis=1, return_counts=True)
        images = table.shape[1]
        drawn = generator.multinomial(images, counts / images, size=draws)
        columns.append(drawn @ patterns.T.astype(np.float64) / images)
    return np.stack(columns, axis=2)


def metric_intervals(
    right: Outcomes, level: float = LEVEL, draws: int = DRAWS
) -> dict[str, Interval | None]:
    """Interval of every metric of `summary`; None for a metric that is not defined."""
    return _ends([summary(R) for R in draw_results(right, draws)], level)


def difference_intervals(
    first: Outcomes, second: Outcomes, level: float = LEVEL, draws: int = DRAWS
) -> dict[str, Interval | None]:
    """Intervals of the metrics of one run minus those of another on the same images."""
    sizes = [[np.shape(table) for table in run] for run in (first, second)]
    if sizes[0] != sizes[1]:
        raise SodapError(
            "runs can be compared image by image only if they have the same test images"
        )
    stages = sizes[0][0][0]
    both = draw_results([np.concatenate([a, b]) for a, b in zip(first, second, strict=True)], draws)
    gaps = []
    for R in both:
        one, other = summary(R[:stages]), summary(R[stages:])
        gaps.append({name: _minus(one[name], other[name]) for name in one})
    return _ends(gaps, level)


def _minus(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def _ends(drawn: Sequence[dict[str, float | None]], level: float) -> dict[str, Interval | None]:
    """Percentile interval of each metric."""
    outside = (1 - level) / 2
    ends: dict[str, Interval | None] = {}
    for name in drawn[0]:
        values = [each[name] for each in drawn]
        if None in values:
            ends[name] = None
            continue
        low, high = np.quantile(np.array(values, np.float64), [outside, 1 - outside])
        ends[name] = Interval(float(low), float(high))
    return ends
