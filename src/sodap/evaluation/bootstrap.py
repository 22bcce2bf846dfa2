"""Differences of methods on the same test images, over other images and other seeds.

Units (patients, lesions; single images where there are no groups) are drawn with replacement, the
same ones for all methods, within the domains that they belong to. That varies the test images. The
noise between seeds is added by Student's t: three seeds are too few to be drawn from, and with
noise from seeds alone the interval is the one of `paired_difference`. Where a method answers an
image differently with another seed, this is counted in both parts, so that intervals are rather too
wide than too narrow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.evaluation.answers import Answers, Floats, UnitSums
from sodap.evaluation.comparison import MIN_SEEDS, PairedDifference
from sodap.evaluation.proportions import LEVEL

DRAWS = 5000
"""Most draws: enough for p values that are multiplied by the number of some twenty rivals."""
FEWEST_DRAWS = 1000
DRAWN_UNITS = 20_000_000
"""With more units there are fewer draws, which then differ less."""
CHUNK = 4_000_000
"""Units drawn at a time."""

K = TypeVar("K", bound=Hashable)


def resampled(
    runs: Mapping[K, Answers], classes: int, draws: int | None = None
) -> dict[K, dict[str, Floats]]:
    """Scores `[1 + B]` of each run by name: the observed one, then those of B draws.

    All runs must have been tested on the same images, in the same order.
    """
    sums: dict[K, UnitSums] = {}
    first: Answers | None = None
    for key, answers in runs.items():
        first = first or answers
        if len(answers) != len(first) or not all(
            one.same_images(other) for one, other in zip(answers, first, strict=True)
        ):
            raise SodapError("runs can be compared only if they have the same test images")
        sums[key] = UnitSums(answers, classes)
    found: dict[K, dict[str, list[Floats]]] = {key: {} for key in runs}
    some = next(iter(sums.values()))
    for weights in _weights(some.strata, draws or default_draws(len(some.strata))):
        for key, each in sums.items():
            for name, values in each.scores(weights).items():
                found[key].setdefault(name, []).append(values)
    return {
        key: {name: np.concatenate(parts) for name, parts in own.items()}
        for key, own in found.items()
    }


def default_draws(units: int) -> int:
    return int(np.clip(DRAWN_UNITS // max(1, units), FEWEST_DRAWS, DRAWS))


def _weights(strata: NDArray[np.int64], draws: int) -> Iterator[NDArray[np.float32]]:
    """How often each unit is drawn `[B, U]`, in parts; the first row draws every unit once."""
    rng = np.random.default_rng(0)  # the same units for everyone, so that tables can be repeated
    count = len(strata)
    yield np.ones((1, count), np.float32)
    members = [np.flatnonzero(strata == each) for each in np.unique(strata)]
    step = max(1, CHUNK // count)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        weights = np.zeros((rows, count), np.float32)
        for own in members:
            drawn = rng.integers(len(own), size=(rows, len(own)))
            drawn += len(own) * np.arange(rows)[:, None]
            times = np.bincount(drawn.ravel(), minlength=rows * len(own))
            weights[:, own] = times.reshape(rows, len(own))
        yield weights


def bootstrap_difference(
    first: NDArray[np.float64], second: NDArray[np.float64], level: float = LEVEL
) -> PairedDifference:
    """`first` minus `second`, scores `[seeds, 1 + B]` of `resampled` for the same seeds.

    The draws are shifted so that their mean is the observed difference: a score with a maximum,
    such as AvgF, is higher in draws. With fewer than `MIN_SEEDS` seeds there is no interval.
    """
    if first.shape != second.shape:
        raise SodapError(f"cannot pair scores {first.shape} with {second.shape}")
    gaps = first - second
    seeds, observed = len(gaps), gaps[:, 0]
    mean = float(observed.mean())
    if seeds < MIN_SEEDS:
        return PairedDifference(seeds, mean, None, None, None)
    drawn = gaps[:, 1:].mean(0)
    drawn = drawn - drawn.mean() + mean
    noise = np.random.default_rng(1).standard_t(seeds - 1, len(drawn))
    drawn = drawn + noise * observed.std(ddof=1) / seeds**0.5
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    tail = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    p = min(1.0, 2 * (1 + tail) / (1 + len(drawn)))
    return PairedDifference(seeds, mean, float(low), float(high), p)
