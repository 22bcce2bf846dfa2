"""Differences of methods on the same test images, over other images and other seeds.

Units (patients, lesions; single images where there are no groups) are drawn with replacement, the
same ones for all methods, within the domains that they belong to. That varies the test images. The
noise between seeds is added by Student's t: three seeds are too few to be drawn from, and with
noise from seeds alone the interval is the one of `paired_difference`. With folds, the runs of one
seed in different folds are independent, so that the noise is known better (`mixtures`). Where a
method answers an image differently with another seed, this is counted in both parts, so that
intervals are rather too wide than too narrow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.evaluation.answers import Answers, DomainAnswers, Floats, Ints, UnitSums
from sodap.evaluation.comparison import MIN_SEEDS, PairedDifference
from sodap.evaluation.proportions import LEVEL

DRAWS = 5000
"""Most draws: enough for p values that are multiplied by the number of some twenty rivals."""
FEWEST_DRAWS = 1000
DRAWN_UNITS = 20_000_000
"""With more units there are fewer draws, which then differ less."""
MIXTURES = 1000
"""Most mixtures of the runs of several seeds."""
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


def mixtures(runs: Sequence[Answers], classes: int) -> dict[str, Floats]:
    """Scores `[C]` of runs that are mixed of S runs with different seeds, fold by fold.

    Each mixture takes every fold from one of the runs: all `S ** folds` of them, or if these are
    too many `MIXTURES` random ones, the same for every method.
    """
    folds = [[_folds(domain) for domain in run] for run in runs]
    sums = [UnitSums(run, classes, keys) for run, keys in zip(runs, folds, strict=True)]
    columns = np.stack([each.columns for each in sums]).astype(np.float64)  # [S, F, K]
    seeds, count, _ = columns.shape
    if seeds**count <= MIXTURES:
        chosen = np.array(list(product(range(seeds), repeat=count)))
    else:
        chosen = np.random.default_rng(2).integers(seeds, size=(MIXTURES, count))
    return sums[0].scores_of(columns[chosen, np.arange(count)].sum(1))


def _folds(domain: DomainAnswers) -> Ints:
    return np.zeros(len(domain.labels), np.int64) if domain.folds is None else domain.folds


def bootstrap_difference(
    first: Floats,
    second: Floats,
    *,
    mixed: Floats | None = None,
    folds: int = 1,
    level: float = LEVEL,
) -> PairedDifference:
    """`first` minus `second`, scores `[seeds, 1 + B]` of `resampled` for the same seeds.

    With folds, `mixed` are the differences `[C]` of the `mixtures` of both methods, from which the
    noise between seeds is known with as many degrees of freedom as there are folds times seeds but
    one; else it is the noise of the observed differences.

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
    spread = observed.std(ddof=1)
    if mixed is not None:  # each fold takes one of the seeds, as in a draw with replacement
        spread = mixed.std() * (seeds / (seeds - 1)) ** 0.5
    noise = np.random.default_rng(1).standard_t(folds * (seeds - 1), len(drawn))
    drawn = drawn + noise * spread / seeds**0.5
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    tail = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    p = min(1.0, 2 * (1 + tail) / (1 + len(drawn)))
    return PairedDifference(seeds, mean, float(low), float(high), p)
