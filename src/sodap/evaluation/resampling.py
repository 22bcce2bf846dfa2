"""How sure a run's numbers are, as far as its test images can tell.

The same images are asked after every stage, so the cells of a column of R rise and fall together.
An image is therefore drawn with all its outcomes, over the stages and over the runs compared: what
two numbers share does not count as noise between them.

The intervals speak of other test images of the same domains, not of other seeds. They take images
for independent; where one patient has several, they are too narrow.
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
"""For each domain: which of its N test images were right after each of T stages, `[T, N]`."""


class Interval(NamedTuple):
    low: float
    high: float


def draw_results(right: Outcomes, draws: int = DRAWS) -> NDArray[np.float64]:
    """R as it would be with other test images, `[draws, T, domains]`.

    Images with the same outcomes are the same to R. To draw N images with replacement is to draw
    how often each pattern of outcomes occurs, which costs nothing even for many images.
    """
    generator = np.random.default_rng(Randomness(0).number("bootstrap of test images"))
    columns = []
    for outcomes in right:
        table = np.asarray(outcomes, bool)
        if table.ndim != 2 or not table.size:
            raise SodapError("the outcomes of a domain are [stages, images], with some of both")
        patterns, counts = np.unique(table, axis=1, return_counts=True)
        images = table.shape[1]
        drawn = generator.multinomial(images, counts / images, size=draws)
        columns.append(drawn @ patterns.T.astype(np.float64) / images)
    return np.stack(columns, axis=2)


def metric_intervals(
    right: Outcomes, level: float = LEVEL, draws: int = DRAWS
) -> dict[str, Interval | None]:
    """An interval for every metric of `summary`; None for one that is not defined."""
    return _ends([summary(R) for R in draw_results(right, draws)], level)


def difference_intervals(
    first: Outcomes, second: Outcomes, level: float = LEVEL, draws: int = DRAWS
) -> dict[str, Interval | None]:
    """Intervals for the metrics of one run minus those of another on the same images."""
    sizes = [[np.shape(table) for table in run] for run in (first, second)]
    if sizes[0] != sizes[1]:
        raise SodapError("two runs can be compared image by image on the same images only")
    stages = sizes[0][0][0]
    both = draw_results([np.concatenate([a, b]) for a, b in zip(first, second, strict=True)], draws)
    one = [summary(R) for R in both[:, :stages]]
    other = [summary(R) for R in both[:, stages:]]
    return _ends([_minus(a, b) for a, b in zip(one, other, strict=True)], level)


def _minus(
    first: dict[str, float | None], second: dict[str, float | None]
) -> dict[str, float | None]:
    gaps: dict[str, float | None] = {}
    for name, one in first.items():
        other = second[name]
        gaps[name] = None if one is None or other is None else one - other
    return gaps


def _ends(drawn: Sequence[dict[str, float | None]], level: float) -> dict[str, Interval | None]:
    outside = (1 - level) / 2
    ends: dict[str, Interval | None] = {}
    for name in drawn[0]:
        values = [each[name] for each in drawn]
        if any(value is None for value in values):
            ends[name] = None
            continue
        low, high = np.quantile(np.array(values, np.float64), [outside, 1 - outside])
        ends[name] = Interval(float(low), float(high))
    return ends
