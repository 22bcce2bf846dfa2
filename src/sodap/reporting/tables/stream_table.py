"""Scores of methods on one stream, over seeds: means, ranking and differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sodap.errors import SodapError
from sodap.evaluation import (
    MIN_SEEDS,
    PairedDifference,
    SeedMean,
    accuracy,
    constant_answer,
    constant_confusions,
    holm,
    macro_f1,
    mean_over_seeds,
    paired_difference,
    summary,
)
from sodap.methods import find_method, method_names
from sodap.reporting.tables.comparability import unequal_settings
from sodap.reporting.tables.metrics import METRICS, Metric
from sodap.reporting.tables.results import Result
from sodap.runs.record import RunRecord

MAIN = "residual-sodap"
CONSTANT = "constant"
"""Row of the best constant answer (`sodap.evaluation.constant`)."""


@dataclass(frozen=True)
class StreamTable:
    """Scores of all methods on one stream with one backbone."""

    stream: str
    backbone: str
    domains: Sequence[str]
    scores: Mapping[str, Mapping[str, Mapping[int, float]]]
    """method -> metric -> seed -> score"""
    constant: Mapping[str, float | None]
    """Scores of the constant answer by metric."""
    constant_class: str
    """Class of the constant answer."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """Rows with changed options -> row of the unchanged method."""
    unequal: Sequence[str] = ()
    """Sentences about settings that differ between rows and should be equal."""
    recalls: Mapping[str, Mapping[str, Mapping[int, float]]] = field(default_factory=dict)
    """method -> class -> seed -> recall after the last stage, over the images of all domains.

    Kept results have none."""

    @property
    def title(self) -> str:
        return f"{self.stream}, {self.backbone}"

    @cached_property
    def methods(self) -> list[str]:
        """All rows, the highest AvgACC first, and each variant below its method."""

        def rank(row: str) -> tuple[float, str]:
            found = self.mean(row, "average_accuracy")
            return (-found.mean if found else 0.0, row)

        return variants_below(sorted(self.scores, key=rank), self.variants)

    @property
    def ranked(self) -> list[str]:
        """Methods that are ranked.

        Methods that see all domains at once are an upper bound, and variants are compared with
        their method. A method with fewer seeds than the others has a mean over other seeds.
        """
        rivals = [m for m in self.methods if not sees_all_domains(m) and m not in self.variants]
        most = max((len(self.seeds(method)) for method in rivals), default=0)
        return [method for method in rivals if len(self.seeds(method)) == most]

    @property
    def incomplete(self) -> list[str]:
        """Methods with too few seeds to be ranked."""
        others = {*self.ranked, *self.variants}
        return [m for m in self.methods if m not in others and not sees_all_domains(m)]

    def seeds(self, method: str) -> list[int]:
        return sorted(self.scores[method]["average_accuracy"])

    def common_seeds(self, *methods: str) -> set[int]:
        return set.intersection(*(set(self.seeds(method)) for method in methods))

    def mean(self, method: str, metric: str) -> SeedMean | None:
        """Mean over seeds; None if the metric is not defined, such as AvgF after one stage."""
        found = self.scores[method][metric]
        return mean_over_seeds([found[seed] for seed in sorted(found)]) if found else None

    def recall(self, method: str, name: str) -> float | None:
        """Mean recall of a class over seeds; None if it is not known."""
        found = self.recalls.get(method, {}).get(name, {})
        return sum(found.values()) / len(found) if found else None

    def never_found(self, method: str) -> list[str]:
        """Classes that a method finds in no image of a learned domain, with any seed."""
        known = self.recalls.get(method, {})
        return [name for name, found in known.items() if found and not any(found.values())]

    def difference(self, first: str, second: str, metric: str) -> PairedDifference | None:
        """`first` minus `second` over their common seeds; None if there are none."""
        one, other = self.scores[first][metric], self.scores[second][metric]
        seeds = sorted(one.keys() & other.keys())
        if not seeds:
            return None
        return paired_difference([one[seed] for seed in seeds], [other[seed] for seed in seeds])

    def differences(
        self, pairs: Sequence[tuple[str, str]], metric: str
    ) -> list[PairedDifference | None]:
        """`difference` of each pair, with p values corrected for all of them."""
        return holm([self.difference(first, second, metric) for first, second in pairs])

    def best(self, metric: Metric) -> set[str]:
        """Ranked methods with the best mean, rounded to three digits."""
        found = {method: self.mean(method, metric.key) for method in self.ranked}
        means = {method: round(each.mean, 3) for method, each in found.items() if each is not None}
        if not metric.better or not means:
            return set()
        top = max(mean * metric.better for mean in means.values())
        return {method for method, mean in means.items() if mean * metric.better == top}

    def winners(self, metric: Metric) -> set[str]:
        """`best`, if there are several methods and at least `MIN_SEEDS` common seeds."""
        enough = len(self.ranked) > 1 and len(self.common_seeds(*self.ranked)) >= MIN_SEEDS
        return self.best(metric) if enough else set()

    def reference(self, asked: str | None = None) -> str | None:
        """Method that all others are compared with; None if there is only one."""
        if asked is not None and asked not in self.scores:
            raise SodapError(
                f"no run of '{asked}' on {self.stream}; choose from: {', '.join(self.methods)}"
            )
        if len(self.methods) < 2:
            return None
        if asked is not None:
            return asked
        return MAIN if MAIN in self.scores else (self.ranked or self.methods)[0]


def variants_below(rows: Sequence[str], variants: Mapping[str, str]) -> list[str]:
    """Rows in their order, but each variant below its method."""
    places = {row: place for place, row in enumerate(rows)}
    return sorted(
        rows, key=lambda row: (places.get(variants.get(row, row), places[row]), row in variants)
    )


def sees_all_domains(method: str) -> bool:
    """Whether a method trains on the images of all domains; False for unknown methods."""
    return method in method_names() and find_method(method).learns_all_domains


def make_tables(results: Iterable[Result]) -> list[StreamTable]:
    """One table per stream and backbone."""
    groups: dict[tuple[str, str], dict[str, dict[int, Result]]] = {}
    for result in results:
        record = result.record
        place = record.stream.name, result.backbone
        runs = groups.setdefault(place, {}).setdefault(result.row, {})
        other = runs.setdefault(record.config.seed, result)
        if other is not result:
            paths = f" ({other.path} and {result.path})" if result.path else ""
            raise SodapError(
                f"found two runs of {result.row} with seed {record.config.seed} on {place[0]}"
                f"{paths}; a table takes one run per method and seed"
            )
    return [_table(*place, rows) for place, rows in groups.items()]


def _table(stream: str, backbone: str, rows: Mapping[str, Mapping[int, Result]]) -> StreamTable:
    runs = [(row, result.record) for row, found in rows.items() for result in found.values()]
    scores: dict[str, dict[str, dict[int, float]]] = {
        row: {key: {} for key in METRICS} for row in rows
    }
    for row, record in runs:
        for key, metric in METRICS.items():
            value = metric.of(record)
            if value is not None:
                scores[row][key][record.config.seed] = float(value)
    some = runs[0][1]
    constant, constant_class = constant_scores(some)
    return StreamTable(
        stream,
        backbone,
        [domain.name for domain in some.stream.domains],
        scores,
        constant,
        constant_class,
        {row: record.config.method for row, record in runs if record.variant},
        unequal_settings(rows),
        {row: _recalls(found) for row, found in rows.items()},
    )


def _recalls(runs: Mapping[int, Result]) -> dict[str, dict[int, float]]:
    """class -> seed -> recall, for the runs of one row."""
    found: dict[str, dict[int, float]] = {}
    for seed, result in runs.items():
        verdict = result.record.verdict
        for name, right, count in verdict.recalls if verdict else ():
            found.setdefault(name, {})
            if count:
                found[name][seed] = right / count
    return found


def constant_scores(record: RunRecord) -> tuple[dict[str, float | None], str]:
    """Scores of the constant answer on the stream of `record`, and its class."""
    tests = [domain.counts.test for domain in record.stream.domains]
    stages = len(record.R.accuracy)  # it learns nothing, so every row of R is the same
    answer = constant_answer(tests[:stages])
    confusions = constant_confusions(answer, tests)
    scores = summary([[accuracy(matrix) for matrix in confusions]] * stages)
    f1 = summary([[macro_f1(matrix) for matrix in confusions]] * stages)["final_average"]
    answer_name = record.stream.classes[answer]
    return {**scores, "macro_f1": f1, "trainable_parameters": 0.0, "stored_bytes": 0.0}, answer_name
