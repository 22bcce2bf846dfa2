"""Runs as a report sees them: what their folders hold, whole or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sodap.backbones import native_size
from sodap.errors import SodapError
from sodap.evaluation import summary
from sodap.formats import plural
from sodap.learning.trace import Trace
from sodap.reporting.figures.accuracy import Record, Row
from sodap.reporting.pages.checks import Check, split_checks
from sodap.reporting.tables.stream_table import is_candidate, row_of
from sodap.runs.composition import compose, read_composition
from sodap.runs.evidence import StageEvidence, read_evidence, read_steps
from sodap.storage import read_json
from sodap.streams import Stream, load_stream
from sodap.streams.splits import SplitRow, read_splits

NEEDED = {"config", "stream", "R", "stages"}
"""Without these, a JSON file is not the record of a run."""


@dataclass(frozen=True)
class ShownRun:
    """A run and all that it left."""

    record: Record
    log: Sequence[Row] = ()
    evidence: Sequence[StageEvidence] = ()
    composition: Mapping[str, Any] | None = None
    no_composition: str = ""
    """Why there is none, in a sentence."""
    stream: Stream | None = None
    no_stream: str = ""
    """Why the images are not there, in a sentence."""
    splits: Sequence[SplitRow] = ()
    images: bool = True
    """Whether images may be shown."""
    folder: Path | None = None
    label: str = ""
    troubles: Sequence[str] = field(default_factory=tuple)
    """What went wrong besides what the record says."""
    trace: str = ""
    """The traceback that a grid has kept of it."""

    @property
    def method(self) -> str:
        name: str = self.record["config"]["method"]
        return name

    @property
    def row(self) -> str:
        """Its method, or the variant of it that it is."""
        return row_of(self.record)

    @property
    def name(self) -> str:
        """What it is called on a page."""
        return self.label or self.row

    @property
    def stream_name(self) -> str:
        name: str = self.record["stream"]["name"]
        return name

    @property
    def seed(self) -> int:
        return int(self.record["config"]["seed"])

    @property
    def title(self) -> str:
        return f"{self.name} on {self.stream_name}, seed {self.seed}"

    @property
    def classes(self) -> list[str]:
        return list(self.record["stream"].get("classes", ()))

    @property
    def domains(self) -> list[str]:
        """All that are tested, in the order of the columns of R."""
        return [domain["name"] for domain in self.record["stream"]["domains"]]

    @property
    def stages(self) -> list[Mapping[str, Any]]:
        return list(self.record["stages"])

    @property
    def status(self) -> str:
        return str(self.record.get("status", "finished"))

    @property
    def learned(self) -> bool:
        """Whether there is a stage to show."""
        return bool(self.record["R"]["accuracy"])

    @cached_property
    def checks(self) -> list[Check]:
        """Of the splits; they may have to look at every image."""
        rows = self.splits or (self.stream.rows if self.stream is not None else ())
        return split_checks(self.record, rows, self.stream, self.no_stream)

    @cached_property
    def steps(self) -> tuple[Mapping[int, Trace], str]:
        """Every step of each stage; or why single steps cannot be shown, in a sentence.

        They are read when they are asked for: a page about many runs does without them.
        """
        if self.folder is None:
            return {}, "only the record is at hand"
        try:
            found = read_steps(self.folder, [(row["stage"], row["epoch"]) for row in self.log])
        except SodapError as error:
            return {}, str(error)
        return found, "" if found else "not every epoch left its steps (an older version of sodap)"

    def outcomes(self) -> list[NDArray[np.bool_]] | None:
        """For each domain, which test images were right after each stage `[T, N]`."""
        if not self.learned or len(self.evidence) < len(self.stages):
            return None
        return [
            np.stack([stage.right[domain].numpy() for stage in self.evidence])
            for domain in range(len(self.domains))
        ]

    def tested_like(self, other: ShownRun) -> bool:
        """Whether both are known to have been asked about the same test images, in one order.

        The lists of their splits tell. Where one has none, as on a stream that is made in memory,
        both must have dealt the same stream in the same way.
        """
        one, two = self.record, other.record
        if self.splits and other.splits:
            alike = one["stream"]["classes"] == two["stream"]["classes"]
            return alike and self._tests() == other._tests()
        if one["stream"] != two["stream"]:
            return False
        keys = ("stream", "split_seed", "splits")
        return all(one["config"].get(key) == two["config"].get(key) for key in keys)

    def _tests(self) -> list[SplitRow]:
        return [row for row in self.splits if row.split == "test"]


def find_runs(places: Iterable[Path]) -> list[ShownRun]:
    """The runs in these folders, and the records in these files; every folder is looked through."""
    runs: list[ShownRun] = []
    for place in places:
        if not place.exists():
            raise SodapError(f"there is nothing at {place}")
        if place.is_file():
            runs.append(_from_file(place))
            continue
        homes = [place] if (place / "config.json").is_file() else _homes(place)
        if not homes:
            raise SodapError(f"no run is in {place}")
        runs += [read_run(home) for home in homes]
    return labelled(runs)


def _homes(place: Path) -> list[Path]:
    """Folders of runs; candidates of a search are none, for they were never tested."""
    found = sorted(path.parent for path in place.rglob("config.json"))
    return [
        home
        for home in found
        if not is_candidate(home.relative_to(place)) and (home / "record.json").is_file()
    ]


def _from_file(path: Path) -> ShownRun:
    record = read_json(path)
    if not record.keys() >= NEEDED:
        raise SodapError(f"{path} is not the record of a run")
    if path.name == "record.json":
        return read_run(path.parent)
    # Kept results are shorter: what follows from the rest is left out, what is nested is not.
    metrics = {name: summary(R) if R else None for name, R in record["R"].items()}
    stages = []
    for number, stage in enumerate(record["stages"], 1):
        ended = {"pool": stage["pool"]} if stage.get("pool") else {}
        stages.append({"stage": number, "begun": {}, "ended": ended, **stage})
    return ShownRun(
        {"metrics": metrics, **record, "stages": stages},
        no_stream="only the record is at hand, not the run's folder",
    )


def read_run(folder: Path) -> ShownRun:
    """All that a run's folder holds. What is missing or damaged is told, not raised."""
    troubles: list[str] = []
    record = _read_record(folder, troubles)
    log, broken = _read_log(folder / "log.jsonl")
    if broken:
        troubles.append(f"{plural(broken, 'line')} of log.jsonl cannot be read")
    evidence: list[StageEvidence] = []
    stages = len(record["stages"])
    try:
        evidence = read_evidence(folder, stages)
        if len(evidence) < stages:
            troubles.append(
                f"{stages - len(evidence)} of {stages} stages left no evidence (an older version, "
                f"or evidence=false): routing, calibration and intervals are not shown"
            )
    except SodapError as error:
        troubles.append(str(error))
    splits: list[SplitRow] = []
    if (folder / "splits.csv").is_file():
        try:
            splits = read_splits(folder / "splits.csv")
        except SodapError as error:
            troubles.append(str(error))
    trace = folder.with_name(f"{folder.name}.error.txt")
    return ShownRun(
        record,
        log,
        evidence,
        _composition(folder) if stages else None,
        splits=splits,
        folder=folder,
        troubles=tuple(troubles),
        trace=trace.read_text("utf-8", "replace") if trace.is_file() else "",
        no_stream="the images were not asked for",
    )


def _composition(folder: Path) -> Mapping[str, Any] | None:
    found = read_composition(folder)
    return None if found is None else found.model_dump()


def _read_record(folder: Path, troubles: list[str]) -> Record:
    """The record, or the little that the settings tell; what is wrong is added to `troubles`."""
    path, note = folder / "record.json", "it ended before it could write a record"
    if path.is_file():
        note = "its record cannot be read"
        try:
            record: Record = read_json(path)
            if record.keys() >= NEEDED:
                return record
            troubles.append(f"{path} is not the record of a run")
        except SodapError as error:
            troubles.append(str(error))
    return _without_record(read_json(folder / "config.json"), note)


def _without_record(config: Mapping[str, Any], note: str) -> Record:
    """A run that was killed before its first epoch ended, or whose record is lost."""
    return {
        "command": [],
        "config": config,
        "stream": {"name": Path(config["stream"]).name, "classes": [], "domains": []},
        "status": "broken off",
        "note": note,
        "R": {"accuracy": [], "macro_f1": []},
        "metrics": {"accuracy": None, "macro_f1": None},
        "confusions": [],
        "stages": [],
    }


def _read_log(path: Path) -> tuple[list[Row], int]:
    """The epochs, and how many lines are damaged."""
    if not path.is_file():
        return [], 0
    rows: list[Row] = []
    broken = 0
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            broken += 1
    return rows, broken


def with_stream(
    run: ShownRun, on_progress: Callable[[int, int], None] | None = None, *, images: bool = True
) -> ShownRun:
    """The run with its images, if they are where they were and are what they were."""
    config = run.record["config"]
    if run.folder is None:
        return replace(run, images=images)
    kept = run.folder / "splits.csv"
    try:
        stream = load_stream(
            config["stream"],
            config["image_size"] or native_size(config["backbone"]),
            data=config["data"],
            split_seed=config["split_seed"],
            splits=str(kept) if kept.is_file() else config["splits"],
            on_progress=on_progress,
        )
    except SodapError as error:
        return replace(run, no_stream=f"the images are not at hand: {error}", images=images)
    known = run.record["stream"]
    if known["domains"] and (
        list(stream.classes) != known["classes"]
        or [d.name for d in stream.tested] != [d["name"] for d in known["domains"]]
        or [len(d.test) for d in stream.tested]
        != [sum(d["counts"]["test"]) for d in known["domains"]]
    ):
        why = f"what is called '{config['stream']}' here is not the stream of this run"
        return replace(run, no_stream=why, images=images)
    return replace(run, stream=stream, no_stream="", images=images)


def with_composition(
    run: ShownRun, on_progress: Callable[[int, int], None] | None = None
) -> ShownRun:
    """The run with its parts exchanged, measured now unless that was done before."""
    if run.composition is not None:
        return run
    if run.folder is None or run.stream is None:
        return replace(run, no_composition=run.no_stream)
    if run.status != "finished":
        return replace(run, no_composition="the run is not finished")
    try:
        found = compose(run.folder, run.stream, on_progress).model_dump()
    except SodapError as error:
        return replace(run, no_composition=str(error))
    return replace(run, composition=found)


# ------------------------------------------------------------------ telling runs apart


def labelled(runs: Sequence[ShownRun]) -> list[ShownRun]:
    """Runs of one row get the settings in which they differ into their label.

    A variant says in its name in what it differs from its method.
    """
    named = []
    for run in runs:
        rivals = [
            other for other in runs if other.row == run.row and other.stream_name == run.stream_name
        ]
        flat = [_flat(other.record["config"]) for other in rivals]
        mine = _flat(run.record["config"])
        differing = [
            key
            for key in mine
            if any(other.get(key) != mine[key] for other in flat) and key not in _NOT_NAMED
        ]
        words = [f"{key.split('.', 1)[-1]}={_word(mine[key])}" for key in differing]
        named.append(replace(run, label=" ".join([run.row, *words])))
    return _numbered(named)


_NOT_NAMED = ("seed", "data", "splits", "stream", "device")


def _numbered(runs: Sequence[ShownRun]) -> list[ShownRun]:
    """The very same settings twice: the second is called so."""
    seen: dict[tuple[str, str, int], int] = {}
    found = []
    for run in runs:
        key = (run.stream_name, run.label, run.seed)
        seen[key] = seen.get(key, 0) + 1
        again = f" (again, {seen[key]})" if seen[key] > 1 else ""
        found.append(replace(run, label=run.label + again))
    return found


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
