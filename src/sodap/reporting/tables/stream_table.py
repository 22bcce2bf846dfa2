"""Scores of methods on one stream, over seeds: means, ranking and differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.evaluation import (
    MIN_SEEDS,
    DomainAnswers,
    PairedDifference,
    SeedMean,
    accuracy,
    balanced_accuracy,
    bootstrap_difference,
    constant_answer,
    constant_confusions,
    holm,
    macro_f1,
    mean_over_seeds,
    mixtures,
    paired_difference,
    rarest_class,
    resampled,
    summary,
)
from sodap.evaluation.answers import SCORES
from sodap.methods import find_method, method_names
from sodap.reporting.tables.comparability import unequal_settings
from sodap.reporting.tables.metrics import METRICS, Metric
from sodap.reporting.tables.results import Result, pool_results, two_runs
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

    Kept results of earlier versions have none."""
    answers: Mapping[tuple[str, int], Sequence[DomainAnswers]] = field(default_factory=dict)
    """Answers to single images by method and seed.

    Empty unless all runs have them, and the runs of a seed have the same test images."""
    folds: int | None = None
    """Number of folds that are pooled; None for runs without folds."""
    left_out: Sequence[str] = ()
    """Runs that miss folds."""

    @property
    def title(self) -> str:
        folds = f", {self.folds} folds" if self.folds else ""
        return f"{self.stream}, {self.backbone}{folds}"

    @cached_property
    def drawn(self) -> Mapping[tuple[str, int], Mapping[str, NDArray[np.float64]]]:
        """Scores of drawn test images by method and seed (see `sodap.evaluation.bootstrap`)."""
        found: dict[tuple[str, int], Mapping[str, NDArray[np.float64]]] = {}
        for seed in sorted({seed for _, seed in self.answers}):  # each may have its own splits
            runs = {key: run for key, run in self.answers.items() if key[1] == seed}
            found |= resampled(runs, self.class_count)
        return found

    @cached_property
    def class_count(self) -> int:
        """Number of classes that occur as label or answer."""
        domains = [domain for run in self.answers.values() for domain in run]
        return 1 + max(int(max(d.labels.max(), d.answers.max())) for d in domains)

    def _mixed(self, row: str, seeds: tuple[int, ...]) -> Mapping[str, NDArray[np.float64]]:
        """Scores of runs that are mixed of several seeds, fold by fold."""
        if (row, seeds) not in self._mixtures:
            runs = [self.answers[row, seed] for seed in seeds]
            self._mixtures[row, seeds] = mixtures(runs, self.class_count)
        return self._mixtures[row, seeds]

    @cached_property
    def _mixtures(self) -> dict[tuple[str, tuple[int, ...]], Mapping[str, NDArray[np.float64]]]:
        """What `_mixed` has computed."""
        return {}

    @property
    def intervals(self) -> str:
        """What the intervals of differences are over, in words."""
        if self.answers:
            return "95 % bootstrap interval over test images, by patient or lesion, and over seeds"
        return "95 % Student's t interval over seeds"

    @property
    def noise(self) -> str:
        """What a difference may be due to, in words."""
        return "the noise of test images and seeds" if self.answers else "the noise between seeds"

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
        if self.answers and metric in SCORES:
            drawn = [
                np.stack([self.drawn[row, seed][metric] for seed in seeds])
                for row in (first, second)
            ]
            if self.folds is None:
                return bootstrap_difference(drawn[0], drawn[1])
            mixed = [self._mixed(row, tuple(seeds))[metric] for row in (first, second)]
            return bootstrap_difference(
                drawn[0], drawn[1], mixed=mixed[0] - mixed[1], folds=self.folds
            )
        return paired_difference([one[seed] for seed in seeds], [other[seed] for seed in seeds])

    def differences(
        self, pairs: Sequence[tuple[str, str]], metric: str
    ) -> list[PairedDifference | None]:
        """`difference` of each pair, with p values corrected for all of them."""
        return holm([self.difference(first, second, metric) for first, second in pairs])

    def family(self, reference: str, metric: str) -> dict[str, PairedDifference | None]:
        """Every other row minus `reference`, with p values corrected for all of them.

        This is the family of comparisons of a table: whatever says something about one of these
        differences, in cells or in words, takes it from here.
        """
        others = [row for row in self.methods if row != reference]
        pairs = [(row, reference) for row in others]
        return dict(zip(others, self.differences(pairs, metric), strict=True))

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
    """One table per stream, backbone and number of folds; none if no run has all its folds."""
    groups: dict[tuple[str, str, int | None], list[Result]] = {}
    for result in results:
        folds = result.fold.of if result.fold else None
        place = result.record.stream.name, result.backbone, folds
        groups.setdefault(place, []).append(result)
    tables = []
    for (stream, backbone, folds), own in groups.items():
        pooled, incomplete = pool_results(own)
        rows: dict[str, dict[int, Result]] = {}
        for result in pooled:
            other = rows.setdefault(result.row, {}).setdefault(result.record.config.seed, result)
            if other is not result:
                raise two_runs(other, result)
        if rows:
            table = _table(stream, backbone, rows)
            tables.append(replace(table, folds=folds, left_out=incomplete))
    return tables


def _table(stream: str, backbone: str, rows: Mapping[str, Mapping[int, Result]]) -> StreamTable:
    runs = [(row, result.record) for row, own in rows.items() for result in own.values()]
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
        {row: _recalls(own) for row, own in rows.items()},
        _answers(rows),
    )


def _answers(
    rows: Mapping[str, Mapping[int, Result]],
) -> dict[tuple[str, int], Sequence[DomainAnswers]]:
    """Answers of all runs; empty if they are not known, or not about the same images."""
    found: dict[tuple[str, int], Sequence[DomainAnswers]] = {}
    first: dict[int, Sequence[DomainAnswers]] = {}
    for row, runs in rows.items():
        for seed, result in runs.items():
            own = found[row, seed] = result.record.single_answers
            other = first.setdefault(seed, own)
            if len(own) != len(other) or not all(map(DomainAnswers.same_images, own, other)):
                return {}
    stages = {len(own[0].answers) if own else 0 for own in found.values()}
    return found if len(stages) == 1 and 0 not in stages else {}


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
    scores: dict[str, float | None] = dict(summary([list(map(accuracy, confusions))] * stages))
    for key, measure in (("macro_f1", macro_f1), ("balanced_accuracy", balanced_accuracy)):
        scores[key] = summary([list(map(measure, confusions))] * stages)["final_average"]
    rarest = rarest_class(tests[:stages])
    if rarest is not None:
        scores["rarest_recall"] = float(rarest == answer)
    scores |= {"trainable_parameters": 0.0, "stored_bytes": 0.0}
    return scores, record.stream.classes[answer]
