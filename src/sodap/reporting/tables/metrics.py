"""Metrics that tables and pages show: their names, meaning and place in a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Literal

import numpy as np

from sodap.errors import SodapError
from sodap.evaluation import (
    SeedMean,
    balanced_accuracy,
    forgetting_by_chance,
    rarest_class,
    recall_per_class,
)
from sodap.formats import MISSING, format_bytes, format_count, format_score
from sodap.runs.record import RunRecord


@dataclass(frozen=True)
class Metric:
    """One column of a table."""

    key: str
    title: str
    better: int
    """1 if higher is better, -1 if lower is better, 0 if no method is called best."""
    of: Callable[[RunRecord], float | None]
    unit: Literal["score", "count", "bytes"] = "score"
    short: str | None = None
    """Title on a narrow terminal, if it differs."""

    def format(self, value: float | None) -> str:
        if value is None:
            return MISSING
        if self.unit == "score":
            return format_score(value)
        return format_bytes(value) if self.unit == "bytes" else format_count(value)

    def format_mean(self, found: SeedMean | None, plus: str = " ± ") -> str:
        """Mean and standard deviation; a size that is equal for all seeds has only a mean."""
        if found is None:
            return MISSING
        mean = self.format(found.mean)
        if found.sd is None or (self.unit != "score" and found.sd == 0):
            return mean
        # A deviation smaller than the last digit of the mean is written as 0.
        hidden = self.unit != "score" and self.format(found.mean + found.sd) == mean
        return f"{mean}{plus}{'0' if hidden else self.format(found.sd)}"


def _accuracy(name: str) -> Callable[[RunRecord], float | None]:
    return lambda record: getattr(record.metrics.accuracy, name)


def _trainable(record: RunRecord) -> int:
    return max(stage.trainable_parameters for stage in record.stages)


def _speed(kind: str) -> Callable[[RunRecord], float | None]:
    return lambda record: getattr(record.throughput, kind)


def _macro_f1(record: RunRecord) -> float | None:
    return None if record.metrics.macro_f1 is None else record.metrics.macro_f1.final_average


def _balanced(record: RunRecord) -> float | None:
    """Mean recall over classes after the last stage, averaged over the learned domains."""
    if not record.confusions:
        return None
    learned = record.confusions[-1][: len(record.confusions)]
    return mean(balanced_accuracy(np.array(matrix)) for matrix in learned)


def _rarest_recall(record: RunRecord) -> float | None:
    """Recall of the class with the fewest test images, over the learned domains."""
    if not record.confusions:
        return None
    total = np.sum(np.array(record.confusions[-1][: len(record.confusions)]), axis=0)
    rarest = rarest_class([total.sum(1).tolist()])
    return None if rarest is None else recall_per_class(total)[rarest]


def _by_chance(record: RunRecord) -> float | None:
    return forgetting_by_chance(record.single_answers) if record.answers else None


METRICS: Mapping[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric("average_accuracy", "AvgACC", 1, _accuracy("average_accuracy")),
        Metric("average_forgetting", "AvgF", -1, _accuracy("average_forgetting")),
        Metric("forgetting_by_chance", "AvgF by chance", 0, _by_chance, short="by chance"),
        Metric("final_average", "final", 1, _accuracy("final_average")),
        Metric("backward_transfer", "BWT", 1, _accuracy("backward_transfer")),
        Metric("balanced_accuracy", "balanced", 1, _balanced),
        Metric("macro_f1", "macro-F1", 1, _macro_f1),
        Metric("rarest_recall", "rarest class", 1, _rarest_recall, short="rarest"),
        Metric("trainable_parameters", "trainable", 0, _trainable, "count"),
        Metric("stored_bytes", "stored", 0, lambda r: r.stages[-1].stored_bytes, "bytes"),
        Metric("train_speed", "train images/s", 0, _speed("train"), "count", "train/s"),
        Metric("inference_speed", "test images/s", 0, _speed("inference"), "count", "test/s"),
    )
}

SCORES = tuple(
    METRICS[key]
    for key in (
        "final_average",
        "average_accuracy",
        "average_forgetting",
        "backward_transfer",
        "macro_f1",
    )
)
"""Scores of a page about runs: first what the model is worth in the end."""


def find_metrics(names: Iterable[str]) -> list[Metric]:
    """Metrics by key or title; all of them if no name is given."""
    known = {name.lower(): m for m in METRICS.values() for name in (m.key, m.title)}
    chosen = []
    for name in names:
        if name.lower() not in known:
            raise SodapError(f"unknown metric '{name}'; choose from: {', '.join(METRICS)}")
        chosen.append(known[name.lower()])
    return chosen or list(METRICS.values())
