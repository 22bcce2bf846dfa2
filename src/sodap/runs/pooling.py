"""The folds of a run as one result: every image is tested once, by the run of its fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np

from sodap.runs.answers import joined
from sodap.runs.record import MetricsByMeasure, ResultMatrices, RunRecord, Throughput
from sodap.runs.run_log import MEASURES


def pool_folds(folds: Sequence[RunRecord]) -> RunRecord:
    """One record for the runs of all folds of a stream, of one method and seed.

    Confusion matrices are added, and R is that of the sums: a mean of R over folds would be the
    same for accuracy, but not for F1 with few images of a class, or for the maximum in AvgF. What
    is no result (stages, searches, times) is that of the first fold; speeds are means. The test
    images are those of all folds, and other counts those of the first.
    """
    first = folds[0]
    confusions = np.sum([np.array(each.confusions) for each in folds], axis=0)
    R = ResultMatrices(
        **{
            name: [[measure(matrix) for matrix in row] for row in confusions]
            for name, measure in MEASURES.items()
        }
    )
    answers = []
    if all(each.answers for each in folds):
        answers = [joined(parts) for parts in zip(*(f.answers for f in folds), strict=True)]
    changes: Mapping[str, Any] = {
        "config": first.config.model_copy(update={"fold": None}),
        "stream": _pooled_stream(folds),
        "R": R,
        "metrics": MetricsByMeasure.of(R),
        "confusions": confusions.tolist(),
        "answers": answers,
        "throughput": Throughput(
            train=_mean([each.throughput.train for each in folds]),
            inference=_mean([each.throughput.inference for each in folds]),
        ),
    }
    return first.model_copy(update=changes)


def _pooled_stream(folds: Sequence[RunRecord]) -> Any:
    stream = folds[0].stream
    domains = []
    for place, domain in enumerate(stream.domains):
        tests = [each.stream.domains[place].counts.test for each in folds]
        total = np.sum(tests, axis=0).tolist()
        counts = domain.counts.model_copy(update={"test": total})
        domains.append(domain.model_copy(update={"counts": counts}))
    return stream.model_copy(update={"domains": domains})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
