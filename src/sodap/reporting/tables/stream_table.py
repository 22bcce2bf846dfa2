"""Many runs as one table a stream: what each method scored, what it cost, and who beats whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sodap.errors import SodapError
from sodap.evaluation import (
    FEWEST,
    Difference,
    Spread,
    accuracy,
    constant_confusions,
    macro_f1,
    paired_bootstrap,
    spread,
    summary,
)
from sodap.methods import find_method, method_names
from sodap.reporting.tables.comparability import DEALT, dealt, unequal_terms
from sodap.storage import read_json

Record = Mapping[str, Any]

MAIN = "residual-sodap"
SAME = 1e-9
"""Scores that differ by less are one score: no single image was answered otherwise."""
PARTS = ("training", "options")
"""The keys of a configuration that hold settings themselves."""
CONSTANT = "constant"
"""The row of the classifier that always answers the most frequent class of the first domain."""
FULL = "full"
"""What an ablation calls the method of which nothing is removed."""
FOUND = "found_at"
"""What a record is given, besides what it holds: where it was found."""


@dataclass(frozen=True)
class Metric:
    """One column: how it is called, and where in a record it stands."""

    key: str
    title: str
    better: int
    """1 if more is better, -1 if less is, 0 for what has a price but no winner."""
    of: Callable[[Record], float | None]
    unit: str = "score"
    """score | count | bytes | speed"""
    short: str | None = None
    """A title for a narrow terminal, where the usual one is too wide."""


def _score(name: str, measure: str = "accuracy") -> Callable[[Record], float | None]:
    return lambda record: summary(record["R"][measure])[name]


def _stored(record: Record) -> float:
    """After the last stage; kept results hold the sum alone."""
    last = record["stages"][-1]
    if "stored_bytes" in last:
        return float(last["stored_bytes"])
    return float(sum(asset["bytes"] for asset in last["stored"]))


def _speed(kind: str) -> Callable[[Record], float | None]:
    return lambda record: record.get("throughput", {}).get(kind)


METRICS: Mapping[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric("average_accuracy", "AvgACC", 1, _score("average_accuracy")),
        Metric("average_forgetting", "AvgF", -1, _score("average_forgetting")),
        Metric("final_average", "final", 1, _score("final_average")),
        Metric("backward_transfer", "BWT", 1, _score("backward_transfer")),
        Metric("macro_f1", "macro-F1", 1, _score("final_average", "macro_f1")),
        Metric(
            "trainable_parameters",
            "trainable",
            0,
            lambda record: max(stage["trainable_parameters"] for stage in record["stages"]),
            "count",
        ),
        Metric("stored_bytes", "stored", 0, _stored, "bytes"),
        Metric("train_speed", "train images/s", 0, _speed("train"), "speed", "train/s"),
        Metric("inference_speed", "test images/s", 0, _speed("inference"), "speed", "test/s"),
    )
}


def find_metrics(names: Iterable[str]) -> list[Metric]:
    """Metrics by key or title; all of them where none is named."""
    known = {name.lower(): m for m in METRICS.values() for name in (m.key, m.title)}
    chosen = []
    for name in names:
        if name.lower() not in known:
            raise SodapError(f"no metric is called '{name}'; there are: {', '.join(METRICS)}")
        chosen.append(known[name.lower()])
    return chosen or list(METRICS.values())


@dataclass(frozen=True)
class StreamTable:
    """All that was measured on one stream with one backbone."""

    stream: str
    backbone: str
    domains: Sequence[str]
    numbers: Mapping[str, Mapping[str, Mapping[int, float]]]
    """method -> metric -> seed -> number"""
    constant: Mapping[str, float | None]
    """The scores of the constant classifier, by metric."""
    answer: str
    """The class that the constant classifier answers."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """Rows that are a method with some option changed -> the row of that method as it is."""
    unequal: Sequence[str] = ()
    """In what the rows differ that should be equal, such as how long they learned."""
    full: str | None = None
    """Of an ablation: the row of the method of which nothing is removed."""

    @property
    def title(self) -> str:
        return f"{self.stream}, {self.backbone}"

    @cached_property
    def methods(self) -> list[str]:
        """The most accurate first, in the order of the alphabet where they are equal.

        A variant stands below its method.
        """

        def rank(method: str) -> tuple[float, str]:
            found = self.spread(method, "average_accuracy")
            return (-found.mean if found else 0.0, method)

        return variants_below(sorted(self.numbers, key=rank), self.variants)

    @property
    def contenders(self) -> list[str]:
        """Those that can be ranked.

        Methods that see all domains at once are a bound, not a rival; a variant is there to be
        compared with its method; and a mean over fewer seeds than the others have is a mean over
        other seeds.
        """
        rivals = [m for m in self.methods if not is_bound(m) and m not in self.variants]
        most = max((len(self.seeds(method)) for method in rivals), default=0)
        return [method for method in rivals if len(self.seeds(method)) == most]

    @property
    def incomplete(self) -> list[str]:
        """Those with too few seeds to be ranked."""
        apart = {*self.contenders, *self.variants}
        return [m for m in self.methods if m not in apart and not is_bound(m)]

    def seeds(self, method: str) -> list[int]:
        return sorted(self.numbers[method]["average_accuracy"])

    def shared(self, *methods: str) -> set[int]:
        """The seeds that all of them have."""
        return set.intersection(*(set(self.seeds(method)) for method in methods))

    def spread(self, method: str, metric: str) -> Spread | None:
        """None where the metric is not defined, such as forgetting after one stage."""
        found = self.numbers[method][metric]
        return spread([found[seed] for seed in sorted(found)]) if found else None

    def difference(self, first: str, second: str, metric: str) -> Difference | None:
        """`first` minus `second` over the seeds that both have; None where there are none.

        Without an interval where they are fewer than `FEWEST`.
        """
        one, other = self.numbers[first][metric], self.numbers[second][metric]
        shared = sorted(one.keys() & other.keys())
        if not shared:
            return None
        found = paired_bootstrap([one[seed] for seed in shared], [other[seed] for seed in shared])
        return found if len(shared) >= FEWEST else replace(found, low=None, high=None)

    def best(self, metric: Metric) -> set[str]:
        """The winners among the contenders, as far as three digits can tell."""
        found = {method: self.spread(method, metric.key) for method in self.contenders}
        means = {method: round(each.mean, 3) for method, each in found.items() if each is not None}
        if not metric.better or not means:
            return set()
        top = max(mean * metric.better for mean in means.values())
        return {method for method, mean in means.items() if mean * metric.better == top}

    def winners(self, metric: Metric) -> set[str]:
        """The best, where there are several methods and seeds enough to call one so."""
        ranked = self.contenders
        enough = len(ranked) > 1 and len(self.shared(*ranked)) >= FEWEST
        return self.best(metric) if enough else set()

    def rival(self, asked: str | None) -> str | None:
        """The method that all others are compared with; None where there is nothing to compare."""
        if asked is not None and asked not in self.numbers:
            raise SodapError(
                f"no run of '{asked}' is among those on {self.stream}; "
                f"there are: {', '.join(self.methods)}"
            )
        if len(self.methods) < 2:
            return None
        if asked or self.full:
            return asked or self.full
        return MAIN if MAIN in self.numbers else (self.contenders or self.methods)[0]


def variants_below(rows: Sequence[str], variants: Mapping[str, str]) -> list[str]:
    """Rows in their order, but each variant below its method, if that is there."""
    places = {row: place for place, row in enumerate(rows)}
    return sorted(
        rows, key=lambda row: (places.get(variants.get(row, row), places[row]), row in variants)
    )


def is_bound(method: str) -> bool:
    """Whether a method is given the images of all domains; unknown ones are believed not to be."""
    return method in method_names() and find_method(method).learns_all_domains


def find_records(places: Iterable[Path]) -> tuple[list[Record], int]:
    """The records of finished runs in folders and files, and how many runs are not finished."""
    records: list[Record] = []
    unfinished = 0
    for place in places:
        if not place.exists():
            raise SodapError(f"there is nothing at {place}")
        for path in _record_files(place) if place.is_dir() else [place]:
            record = read_json(path)
            if not {"config", "stream", "R"} <= record.keys():
                raise SodapError(f"{path} is not the record of a run")
            if record.get("status", "finished") == "finished":
                records.append({**record, **_beside(path)})
            else:
                unfinished += 1
    if not records:
        are = "is" if unfinished == 1 else "are"
        more = f"; {unfinished} {are} not finished" if unfinished else ""
        raise SodapError(f"no finished run is at {', '.join(map(str, places))}{more}")
    return records, unfinished


def _record_files(folder: Path) -> list[Path]:
    """All but those of candidates in a search, which were never tested."""
    found = folder.rglob("record.json")
    return sorted(path for path in found if not is_candidate(path.parent.relative_to(folder)))


def is_candidate(home: Path) -> bool:
    """Whether a folder holds a candidate of a search: METHOD/search/INDEX.

    A stream, or a folder of runs, may be called `search` too.
    """
    return home.parent.name == "search" and home.name.isdecimal()


def _beside(path: Path) -> dict[str, Any]:
    """What is known of a record from where it lies."""
    if path.name != "record.json":  # a kept result
        return {FOUND: str(path)}
    return {FOUND: str(path.parent), DEALT: dealt(path.parent)}


def row_of(record: Record) -> str:
    """The row that a run belongs to: its method, or the variant of it that it is."""
    name: str = record.get("variant") or record["config"]["method"]
    return name


Place = tuple[str, str]
"""A stream and a backbone, which together make a table."""


def make_tables(records: Iterable[Record]) -> list[StreamTable]:
    """One table for each stream and backbone, in the order in which they come."""
    return [_table(*place, rows) for place, rows in _grouped(records).items()]


def _grouped(records: Iterable[Record]) -> dict[Place, dict[str, dict[int, Record]]]:
    """place -> row -> seed -> record"""
    groups: dict[Place, dict[str, dict[int, Record]]] = {}
    for record in records:
        name, seed, backbone = row_of(record), record["config"]["seed"], record["backbone"]
        place = record["stream"]["name"], f"{backbone['name']} at {backbone['image_size']} pixels"
        runs = groups.setdefault(place, {}).setdefault(name, {})
        if seed in runs:
            both = [run[FOUND] for run in (runs[seed], record) if FOUND in run]
            where = f" ({' and '.join(both)})" if both else ""
            raise SodapError(
                f"two runs are of {name} with seed {seed} on {place[0]}{where}; "
                f"a table needs one setting of each method"
            )
        runs[seed] = record
    return groups


def mixtures(records: Iterable[Record]) -> dict[str, list[str]]:
    """Rows whose runs differ in more than the seed, and in what: `ROW on STREAM` -> settings."""
    found: dict[str, list[str]] = {}
    for (stream, _), rows in _grouped(records).items():
        for name, runs in rows.items():
            first, *others = runs.values()
            mixed = sorted({key for other in others for key in differing(first, other)})
            if mixed:
                found[f"{name} on {stream}"] = mixed
    return found


def differing(one: Record, other: Record) -> list[str]:
    """The settings, besides the seed, and the parts of the code in which two runs differ."""
    first, second = _origin(one), _origin(other)
    return sorted(k for k in first.keys() | second.keys() if first.get(k) != second.get(k))


def _origin(record: Record) -> dict[str, Any]:
    """What all runs of a row must share: every setting but the seed, the weights and the code.

    Where files lie is no setting: weights are known by their digest, images by their number.
    """
    config, environment = record["config"], record.get("environment", {})
    shared = {k: v for k, v in config.items() if k not in (*PARTS, "seed", "data", "weights")}
    for part in PARTS:
        shared |= {f"{part}.{key}": value for key, value in config.get(part, {}).items()}
    return shared | {
        "domains": record["stream"]["domains"],
        "weights": record["backbone"].get("sha256"),
        "commit": environment.get("commit"),
        "version": environment.get("sodap"),
    }


def _table(stream: str, backbone: str, methods: Mapping[str, Mapping[int, Record]]) -> StreamTable:
    variants: dict[str, str] = {}
    full = None
    numbers: dict[str, dict[str, dict[int, float]]] = {}
    for method, runs in methods.items():
        numbers[method] = {key: {} for key in METRICS}
        for seed, record in runs.items():
            if method != record["config"]["method"]:
                variants[method] = record["config"]["method"]
            if record.get("ablation") == FULL:
                full = method
            for key, metric in METRICS.items():
                value = metric.of(record)
                if value is not None:
                    numbers[method][key][seed] = float(value)
    some = next(iter(next(iter(methods.values())).values()))
    constant, answer = _constant(some)
    domains = [domain["name"] for domain in some["stream"]["domains"]]
    unequal = unequal_terms(methods)
    return StreamTable(
        stream, backbone, domains, numbers, constant, answer, variants, unequal, full
    )


def _constant(record: Record) -> tuple[dict[str, float | None], str]:
    """The constant classifier on the stream of `record`: its scores, and what it answers."""
    domains = record["stream"]["domains"]
    first = domains[0]["counts"]["train"]
    confusions = constant_confusions(first, [domain["counts"]["test"] for domain in domains])
    stages = len(record["R"]["accuracy"])  # it learns nothing: every row of R is the same
    scores = summary([[accuracy(matrix) for matrix in confusions]] * stages)
    f1 = summary([[macro_f1(matrix) for matrix in confusions]] * stages)["final_average"]
    answer = record["stream"]["classes"][first.index(max(first))]
    return {**scores, "macro_f1": f1, "trainable_parameters": 0.0, "stored_bytes": 0.0}, answer
