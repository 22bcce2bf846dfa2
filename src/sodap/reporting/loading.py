"""Load everything that a run left in its folder, even if it is incomplete or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.formats import plural
from sodap.learning.trace import Trace
from sodap.reporting.checks import Check, check_splits
from sodap.reporting.tables.comparability import flat_settings
from sodap.reporting.tables.results import record_files
from sodap.runs.composition import Composition, compose, read_composition
from sodap.runs.config import RunConfig
from sodap.runs.evidence import StageEvidence, read_evidence, read_steps
from sodap.runs.reading import checked, read_log, read_record, without_record
from sodap.runs.record import EpochRow, RunRecord, StageRecord
from sodap.runs.stream import load_run_stream
from sodap.storage import read_json
from sodap.streams import Stream
from sodap.streams.splits import SplitRow, read_splits

Progress = Callable[[int, int], None]
"""Called with the number of finished and of all parts."""


@dataclass(frozen=True)
class LoadedRun:
    """A run with the content of its folder."""

    record: RunRecord
    folder: Path | None = None
    """Folder of the run; None for a kept result, which is only a record."""
    log: Sequence[EpochRow] = ()
    evidence: Sequence[StageEvidence] = ()
    composition: Composition | None = None
    no_composition: str = ""
    """Why cross-composition could not be measured."""
    stream: Stream | None = None
    no_stream: str = "they were not requested"
    """Why the images are not loaded."""
    splits: Sequence[SplitRow] = ()
    show_images: bool = True
    label: str = ""
    """Name in a report, if it differs from the row of a table."""
    problems: Sequence[str] = ()
    """What could not be read, one sentence each."""
    traceback: str = ""
    """Traceback that a grid has saved."""

    @property
    def name(self) -> str:
        return self.label or self.record.row

    @property
    def stream_name(self) -> str:
        return self.record.stream.name

    @property
    def seed(self) -> int:
        return self.record.config.seed

    @property
    def title(self) -> str:
        return f"{self.name} on {self.stream_name}, seed {self.seed}"

    @property
    def classes(self) -> list[str]:
        return self.record.stream.classes

    @property
    def domains(self) -> list[str]:
        """Names of all tested domains, in the order of the columns of R."""
        return [domain.name for domain in self.record.stream.domains]

    @property
    def stages(self) -> list[StageRecord]:
        return self.record.stages

    @property
    def finished(self) -> bool:
        return self.record.status == "finished"

    @cached_property
    def checks(self) -> list[Check]:
        """Checks of the splits; computed once, since they may read every image."""
        rows = self.splits or (self.stream.rows if self.stream is not None else ())
        return check_splits(self.record.stream, rows, self.stream, self.no_stream)

    @cached_property
    def steps(self) -> tuple[Mapping[int, Trace], str]:
        """Training steps of each stage; or nothing, and the reason.

        Read on demand, since a page about many runs does not need them.
        """
        if self.folder is None:
            return {}, "a kept result has no steps"
        try:
            found = read_steps(self.folder, [(row.stage, row.epoch) for row in self.log])
        except SodapError as error:
            return {}, str(error)
        return found, "" if found else "the run has not saved the steps of every epoch"

    def outcomes(self) -> list[NDArray[np.bool_]] | None:
        """For each domain, which test images are right after each stage `[T, N]`."""
        if not self.stages or len(self.evidence) < len(self.stages):
            return None
        return [
            np.stack([stage.correct[domain].numpy() for stage in self.evidence])
            for domain in range(len(self.domains))
        ]

    def has_test_images_of(self, other: LoadedRun) -> bool:
        """Whether both runs are known to have the same test images in the same order.

        They are compared by their `splits.csv`. If one has none, as for a stream that is generated,
        both must have split the same stream in the same way.
        """
        one, two = self.record, other.record
        if self.splits and other.splits:
            tests = ([r for r in run.splits if r.split == "test"] for run in (self, other))
            return one.stream.classes == two.stream.classes and next(tests) == next(tests)
        keys = ("stream", "split_seed", "splits", "fold")
        return one.stream == two.stream and all(
            getattr(one.config, key) == getattr(two.config, key) for key in keys
        )


def load_runs(places: Iterable[Path]) -> list[LoadedRun]:
    """Load the runs at `places`: folders of runs, folders with runs below them, kept results."""
    runs: list[LoadedRun] = []
    for place in places:
        paths = record_files(place)
        if not paths:
            raise SodapError(f"found no run in {place}")
        runs += [
            load_run(path.parent)
            if path.name == "record.json"
            else LoadedRun(read_record(path), no_stream="a kept result has no images")
            for path in paths
        ]
    return labelled(runs)


def load_run(folder: Path) -> LoadedRun:
    """Load a run. Files that are missing or damaged become `problems`, not errors."""
    problems: list[str] = []
    record = _read_record(folder, problems)
    log, damaged = read_log(folder / "log.jsonl")
    if damaged:
        problems.append(f"cannot read {plural(damaged, 'line')} of log.jsonl")
    stages = len(record.stages)
    evidence: list[StageEvidence] = []
    splits: list[SplitRow] = []
    composition = None
    try:
        evidence = read_evidence(folder, stages)
        if len(evidence) < stages:
            problems.append(
                f"{stages - len(evidence)} of {stages} stages have no evidence, so routing, "
                f"calibration and intervals are not shown"
            )
    except SodapError as error:
        problems.append(str(error))
    try:
        if (folder / "splits.csv").is_file():
            splits = read_splits(folder / "splits.csv")
    except SodapError as error:
        problems.append(str(error))
    try:
        composition = read_composition(folder) if stages else None
    except SodapError as error:
        problems.append(str(error))
    saved = folder.with_name(f"{folder.name}.error.txt")
    return LoadedRun(
        record,
        folder,
        log,
        evidence,
        composition,
        splits=splits,
        problems=tuple(problems),
        traceback=saved.read_text("utf-8", "replace") if saved.is_file() else "",
    )


def _read_record(folder: Path, problems: list[str]) -> RunRecord:
    """The record; a stand-in from `config.json` if it is missing or damaged."""
    path = folder / "record.json"
    note = "it ended before it wrote a record"
    if path.is_file():
        try:
            return read_record(path)
        except SodapError as error:
            problems.append(str(error))
            note = "its record cannot be read"
    config = folder / "config.json"
    return without_record(checked(RunConfig, read_json(config), config, "configuration"), note)


def with_stream(
    run: LoadedRun, on_progress: Progress | None = None, *, show_images: bool = True
) -> LoadedRun:
    """The run with its images, if they are still there and are the same."""
    run = replace(run, show_images=show_images)
    if run.folder is None:
        return run
    config = run.record.config
    try:
        stream = load_run_stream(config, run.folder, on_progress)
    except SodapError as error:
        return replace(run, no_stream=f"the images cannot be read: {error}")
    known = run.record.stream
    if known.domains and (
        list(stream.classes) != known.classes
        or [(domain.name, len(domain.test)) for domain in stream.tested]
        != [(domain.name, sum(domain.counts.test)) for domain in known.domains]
    ):
        return replace(run, no_stream=f"'{config.stream}' is not the stream of this run any more")
    return replace(run, stream=stream, no_stream="")


def with_composition(run: LoadedRun, on_progress: Progress | None = None) -> LoadedRun:
    """The run with its cross-composition, measured now unless it is known."""
    if run.composition is not None:
        return run
    if run.folder is None or run.stream is None:
        return replace(run, no_composition=run.no_stream)
    if not run.finished:
        return replace(run, no_composition="the run is not finished")
    try:
        return replace(run, composition=compose(run.folder, run.stream, on_progress))
    except SodapError as error:
        return replace(run, no_composition=str(error))


# ------------------------------------------------------------------ names

_NOT_IN_LABELS = ("seed", "data", "splits", "stream", "device")


def labelled(runs: Sequence[LoadedRun]) -> list[LoadedRun]:
    """Give runs of one method and stream the settings in which they differ as part of their name.

    A second run with the same settings and seed is numbered.
    """
    found: list[LoadedRun] = []
    seen: dict[tuple[str, str, int], int] = {}
    for run in runs:
        mine = flat_settings(run.record.config)
        others = [
            flat_settings(other.record.config)
            for other in runs
            if (other.record.row, other.stream_name) == (run.record.row, run.stream_name)
        ]
        words = [
            f"{key.split('.', 1)[-1]}={_text(value)}"
            for key, value in mine.items()
            if key not in _NOT_IN_LABELS and any(other.get(key) != value for other in others)
        ]
        label = " ".join([run.record.row, *words])
        number = seen[run.stream_name, label, run.seed] = (
            seen.get((run.stream_name, label, run.seed), 0) + 1
        )
        found.append(replace(run, label=label if number == 1 else f"{label} ({number})"))
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
