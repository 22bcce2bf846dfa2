"""Intervals of a run's metrics over its test images.

The metrics are weighted sums of R. The same images are tested after every stage, so a column of R
is not a set of independent numbers. But an image contributes one score to a metric, the sum of its
weighted outcomes, and the scores of different images are independent. The interval of a domain is
the exact one for the mean of these scores, and the domains are combined
(`sodap.evaluation.proportions`). In simulations the true value lies in at least 94 % of intervals,
with two domains of four images in 92.6 % at worst.

The intervals are about other test images of the same domains, not about other seeds. They assume
independent images; if a patient has several, the intervals are too narrow.

AvgF has none. It contains the highest of several noisy numbers, which is too high by an unknown
amount. BWT, which differs from it only in where it begins, has one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sodap.errors import SodapError
from sodap.evaluation.proportions import LEVEL, Estimate, Interval, difference, scaled, total

KIND = "exact intervals (Clopper-Pearson) over the test images, combined over domains"
"""What the intervals of this module are called."""

Outcomes = Sequence[NDArray[np.bool_]]
"""For each domain `[T, N]`: which of its N test images are right after each of T stages."""

Weights = NDArray[np.float64]
"""Weights `[T, T]` of R in a metric, which is the sum of all products."""


def metric_weights(stages: int) -> dict[str, Weights | None]:
    """Weights of every metric of `summary`; None for one that has no interval."""
    accuracy, final = np.zeros((stages, stages)), np.zeros((stages, stages))
    for stage in range(stages):
        accuracy[stage, : stage + 1] = 1 / (stages * (stage + 1))
    final[-1] = 1 / stages
    transfer = None
    if stages > 1:
        transfer = np.zeros((stages, stages))
        for domain in range(stages - 1):
            transfer[-1, domain] = 1 / (stages - 1)
            transfer[domain, domain] = -1 / (stages - 1)
    return {
        "average_accuracy": accuracy,
        "average_forgetting": None,
        "final_average": final,
        "backward_transfer": transfer,
    }


def metric_intervals(
    results: ArrayLike, counts: Sequence[int], right: Outcomes | None = None, level: float = LEVEL
) -> dict[str, Interval | None]:
    """Interval of every metric of R `[T, domains]`; None where none can be had.

    `counts` are the test images of each domain. Only BWT needs the outcomes of single images.
    """
    R = np.asarray(results, np.float64)
    stages = len(R)
    found: dict[str, Interval | None] = {}
    for name, weights in metric_weights(stages).items():
        found[name] = None
        if weights is None or not all(counts[:stages]):
            continue
        if (weights >= 0).all():
            shares = (weights * R[:, :stages]).sum(0) / weights.sum(0)
            parts = [
                scaled(float(share), count, float(weight), level)
                for share, count, weight in zip(shares, counts, weights.sum(0), strict=False)
            ]
            found[name] = total(parts).interval
        elif right is not None:
            parts = [_mean(w @ table, w, level) for w, table in _columns(weights, right)]
            found[name] = total(parts).interval
    return found


def difference_intervals(
    first: Outcomes, second: Outcomes, level: float = LEVEL
) -> dict[str, Interval | None]:
    """Intervals of the metrics of one run minus those of another on the same images."""
    sizes = [[np.shape(table) for table in run] for run in (first, second)]
    if sizes[0] != sizes[1]:
        raise SodapError(
            "runs can be compared image by image only if they have the same test images"
        )
    found: dict[str, Interval | None] = {}
    for name, weights in metric_weights(sizes[0][0][0]).items():
        found[name] = None
        if weights is not None:
            pairs = zip(_columns(weights, first), _columns(weights, second), strict=True)
            parts = [
                _mean(w @ one - w @ other, np.append(w, -w), level)
                for (w, one), (_, other) in pairs
            ]
            found[name] = total(parts).interval
    return found


def _columns(weights: Weights, right: Outcomes) -> list[tuple[Weights, NDArray[np.float64]]]:
    """For each learned domain: its weights `[T]` and its outcomes `[T, N]` as 0 and 1."""
    columns = []
    for domain in range(len(weights)):
        table = np.asarray(right[domain], np.float64)
        if table.ndim != 2 or not table.size:
            raise SodapError("the outcomes of a domain must be [stages, images] and not empty")
        columns.append((weights[:, domain], table))
    return columns


def _mean(scores: NDArray[np.float64], weights: Weights, level: float) -> Estimate:
    """Mean of scores `[N]` that are sums of weighted outcomes.

    Images that gain and images that lose are two proportions. The more images do either, the more
    the interval has to be wide; images that stay as they are do not widen it.
    """
    most, least = weights[weights > 0].sum(), -weights[weights < 0].sum()
    if most == 0 and least == 0:  # the last domain in BWT
        return Estimate(0.0, 0.0, 0.0)
    count = len(scores)
    gain = float(np.maximum(scores, 0).mean() / most)
    loss = float(np.maximum(-scores, 0).mean() / least)
    # No image does both, so that the two are negatively correlated.
    spread = ((1 - gain) * (1 - loss)) ** 0.5
    correlation = -((gain * loss) ** 0.5) / spread if spread > 0 else -1.0
    return difference(
        scaled(gain, count, float(most), level), scaled(loss, count, float(least), level),
        max(-1.0, correlation),
    )  # fmt: skip
