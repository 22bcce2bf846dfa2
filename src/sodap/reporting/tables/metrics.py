"""Metrics that tables and pages show: their names, meaning and place in a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sodap.errors import SodapError
from sodap.evaluation import SeedMean
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


METRICS: Mapping[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric("average_accuracy", "AvgACC", 1, _accuracy("average_accuracy")),
        Metric("average_forgetting", "AvgF", -1, _accuracy("average_forgetting")),
        Metric("final_average", "final", 1, _accuracy("final_average")),
        Metric("backward_transfer", "BWT", 1, _accuracy("backward_transfer")),
        Metric("macro_f1", "macro-F1", 1, _macro_f1),
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
