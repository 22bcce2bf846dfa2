"""A grid: streams x methods x seeds, each run in a folder of its own, done by several processes.

OUT/STREAM/METHOD/search.json          which setting was chosen, and from what
OUT/STREAM/METHOD/sSEED/               a run (see `sodap.runs.run`)
OUT/STREAM/METHOD@OPTION/sSEED/        a variant's run, with the setting chosen for the method

A grid may be started again at any time: finished runs are left alone, interrupted ones go on where
they stopped, failed ones get another chance. It may be started several times at once, too: each
process takes what no other is at.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sodap.backbones import native_size
from sodap.errors import FolderBusyError, SodapError, TrainingBrokeError
from sodap.grids.search import (
    BEYOND,
    SEED,
    Setting,
    as_changes,
    choose,
    for_the_record,
    one_beyond,
    read_search,
    refuse_unsearched,
    settings_to_compare,
    write_search,
)
from sodap.grids.task import PAUSE_S, Task, decode, error_line, performed, place_of
from sodap.grids.variants import Entry, read_entry
from sodap.grids.workers import TaskResult
from sodap.methods import find_method, method_names
from sodap.runs.config import RunConfig, load_config
from sodap.runs.named_yaml import GRIDS, read_named_yaml, yaml_names
from sodap.runs.run import check_folder, check_weights
from sodap.storage import folder_lock
from sodap.streams import stream_names

OWN_KEYS = {"stream": "--streams", "method": "--methods", "seed": "--seeds"}
"""What a grid varies; as changes they would make all runs the same."""


class GridRecipe(BaseModel):
    """A grid's file: what is run unless the user says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    streams: list[str] = Field(["digits"], description="streams, as for a run")
    methods: list[str] | Literal["all"] = Field(
        "all", description="methods, or variants such as l2p@faithful"
    )
    seeds: int = Field(5, ge=1, description="so many, from 0")
    settings: dict[str, Any] = Field({}, description="keys of a run, the same for every run")

    def method_names(self) -> list[str]:
        return method_names() if self.methods == "all" else self.methods


def grid_names() -> list[str]:
    return yaml_names(GRIDS)


def read_grid(name: str) -> GridRecipe:
    _, content = read_named_yaml(GRIDS, "grid", name)
    try:
        return GridRecipe.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise SodapError(f"grid '{name}', '{key}': {first['msg'].lower()}") from error


class GridCallback:
    """What can be watched of a grid; this one looks away."""

    def images_decoded(self, done: int, total: int) -> None: ...

    def planned(self, tasks: int, finished: int) -> None:
        """How much there is to do, searches included, and how many runs were done before."""

    def search_goes_on(self, setting: Setting) -> None:
        """One more to do than was planned: the best learning rate was an end of those tried."""

    def task_done(self, task: Task, result: Mapping[str, Any]) -> None: ...

    def task_failed(self, task: Task, error: str) -> None: ...

    def search_done(self, search: Mapping[str, Any]) -> None: ...

    def warned(self, words: str) -> None: ...


@dataclass
class GridSummary:
    """How a grid went."""

    finished: int = 0
    """Runs that were finished before."""
    done: int = 0
    """Runs that were finished now."""
    failures: dict[str, str] = field(default_factory=dict)
    """What was tried and went wrong, with one line of why."""
    waiting: int = 0
    """Runs that were not tried, because their search failed."""


@dataclass(frozen=True)
class Grid:
    streams: Sequence[str]
    methods: Sequence[str]
    """Methods, and variants of them (see `sodap.grids.variants`)."""
    seeds: Sequence[int]
    out: Path
    changes: Sequence[str] = ()
    """`key=value`, the same for every run; a key that is given here is not searched."""
    jobs: int = 1
    search: bool = True
    command: Sequence[str] = ()

    @property
    def entries(self) -> list[Entry]:
        return [read_entry(text) for text in self.methods]

    def check(self) -> None:
        """Everything that can be wrong before the first run."""
        entries = self.entries
        for what, names in (("stream", self.streams), ("method", [e.name for e in entries])):
            if not names or len(set(names)) != len(names):
                raise SodapError(f"a grid needs one or more {what}s, each once")
        if len({place_of(stream) for stream in self.streams}) != len(self.streams):
            raise SodapError("two of the streams have the same name; rename one")
        if not self.seeds or SEED in self.seeds:
            raise SodapError(f"a grid needs one or more seeds, and not {SEED}: searches use it")
        changes = [*self.changes, *(change for entry in entries for change in entry.changes)]
        for key in (change.partition("=")[0] for change in changes):
            if key in OWN_KEYS:
                raise SodapError(f"'{key}' is what a grid varies; give {OWN_KEYS[key]} instead")
        for entry in entries:
            find_method(entry.method)
        for stream in self.streams:
            for entry in entries:
                config = self.config(stream, entry, self.seeds[0])
                native_size(config.backbone)
                check_weights(config)

    def config(
        self, stream: str, entry: Entry, seed: int, setting: Setting | None = None
    ) -> RunConfig:
        chosen = as_changes(setting or {})
        own = [f"stream={stream}", f"method={entry.method}", f"seed={seed}"]
        return load_config("default", [*chosen, *self.changes, *entry.changes, *own])

    def home(self, stream: str, entry: Entry) -> Path:
        return self.out / place_of(stream) / entry.name

    def compared(self, method: str) -> list[Setting]:
        return settings_to_compare(method, self.changes) if self.search else []

    def run(self, callback: GridCallback | None = None) -> GridSummary:
        """Search where there is something to choose, then run what is not finished."""
        self.check()
        return _Progress(self, callback or GridCallback()).to_the_end()


class _Progress:
    """A grid under way."""

    def __init__(self, grid: Grid, callback: GridCallback) -> None:
        self.grid, self.callback = grid, callback
        self.outcome = GridSummary()
        self.tasks: deque[Task] = deque()
        self.threads = max(1, len(os.sched_getaffinity(0)) // grid.jobs)
        self.entries: dict[str, list[Entry]] = {}  # by method: those of one share its search
        for entry in grid.entries:
            self.entries.setdefault(entry.method, []).append(entry)
        # The settings that a cell's search compares, and by their place in it what came out.
        self.compared: dict[tuple[str, str], list[Setting]] = {}
        self.results: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
        self.lost: set[tuple[str, str]] = set()
        self.locks: dict[tuple[str, str], ExitStack] = {}  # of the searches of this process
        self.elsewhere: list[tuple[str, str]] = []  # cells that another process searches for
        self.warned: set[str] = set()

    def to_the_end(self) -> GridSummary:
        try:
            self._begin()
            while self.tasks or self.elsewhere:
                with closing(performed(self.tasks, self.grid.jobs)) as reports:
                    for report in reports:
                        self._take(report)
                self._look_elsewhere()
        finally:
            for cell in list(self.locks):
                self._let_go(cell)
        return self.outcome

    def _begin(self) -> None:
        later: list[Task] = []
        expected = 0  # runs that wait for a search
        for cell in ((stream, method) for stream in self.grid.streams for method in self.entries):
            tasks = self._open(*cell)
            if tasks is None:
                self.elsewhere.append(cell)
            elif cell in self.compared:
                self.tasks += tasks
            else:
                later += tasks
                continue
            expected += len(self.grid.seeds) * len(self.entries[cell[1]])
        self.tasks += later  # searches first: more runs come out of them
        if self.tasks:
            self._decode()
        self.callback.planned(len(self.tasks) + expected, self.outcome.finished)

    def _open(self, stream: str, method: str) -> list[Task] | None:
        """What is to do for a cell first; None as long as another process searches for it."""
        compared = self.grid.compared(method)
        base = self.grid.config(stream, Entry(method), SEED)
        home = self.grid.home(stream, Entry(method))
        search = read_search(home, base, compared)
        if search is None and compared:
            try:
                refuse_unsearched(home)
                lock = ExitStack()
                lock.enter_context(folder_lock(home))
                self.locks[stream, method] = lock
            except FolderBusyError:
                return None
            except SodapError:
                if read_search(home, base, compared) is None:
                    raise
            search = read_search(home, base, compared)  # another process may have made it since
        if search is not None or not compared:
            self._let_go((stream, method))
            return self._runs(stream, method, search)
        self.compared[stream, method] = compared
        return [self._candidate(stream, method, index) for index in range(len(compared))]

    def _look_elsewhere(self) -> None:
        """Go on with what other processes have found, or have left."""
        for cell in list(self.elsewhere):
            tasks = self._open(*cell)
            if tasks is not None:
                self.elsewhere.remove(cell)
                self.tasks += tasks
        if self.tasks:
            self._decode()
        elif self.elsewhere:
            time.sleep(PAUSE_S)

    def _let_go(self, cell: tuple[str, str]) -> None:
        """Others may see now what came of the search."""
        self.locks.pop(cell, ExitStack()).close()

    def _candidate(self, stream: str, method: str, index: int) -> Task:
        entry, setting = Entry(method), self.compared[stream, method][index]
        nothing_left = {"evidence": False, "keep_stages": False}  # nobody looks at a candidate
        return Task(
            self.grid.config(stream, entry, SEED, setting).model_copy(update=nothing_left),
            self.grid.home(stream, entry) / "search" / str(index),
            setting,
            command=self.grid.command,
            threads=self.threads,
        )

    def _runs(self, stream: str, method: str, search: Mapping[str, Any] | None) -> list[Task]:
        """The runs of a cell that are still to do, its variants' included."""
        tasks = []
        for entry in self.entries[method]:
            for seed in self.grid.seeds:
                config = self.grid.config(stream, entry, seed, search and search["chosen"])
                folder = self.grid.home(stream, entry) / f"s{seed}"
                if check_folder(config, folder, resume=True) is not None:
                    self.outcome.finished += 1
                    continue
                context = {
                    "jobs": self.grid.jobs,
                    "search": for_the_record(search) if search is not None else None,
                    "variant": entry.variant,
                }
                tasks.append(
                    Task(
                        config,
                        folder,
                        command=self.grid.command,
                        context=context,
                        threads=self.threads,
                    )
                )
        return tasks

    def _decode(self) -> None:
        """Once, here, where the user can see it; the workers then find it done."""
        needed = {task.config.stream: task.config for task in self.tasks}
        for stream, config in needed.items():
            if stream not in stream_names():  # those are made in memory, by each worker
                decode(config, self.callback.images_decoded)

    def _take(self, report: TaskResult[Task]) -> None:
        task, result = report.task, report.result or {}
        # A setting that cannot be trained has a result: no score. Other errors (memory, disk) say
        # nothing about the setting.
        broke = task.setting is not None and isinstance(report.error, TrainingBrokeError)
        error = error_line(report)
        for words in result.get("warnings", ()):
            if words not in self.warned:
                self.warned.add(words)
                self.callback.warned(words)
        if broke:
            error, result = None, {"score": None}
        if error is not None:
            self.outcome.failures[task.label] = error
            if task.setting is not None:
                self._give_up(task.cell)
            self.callback.task_failed(task, error)
            return
        self.callback.task_done(task, result)
        if task.setting is None:
            self.outcome.done += 1
        else:
            self._score(task, result)

    def _give_up(self, cell: tuple[str, str]) -> None:
        """Without a search there are no runs; this is said once, however many candidates fail."""
        if cell not in self.lost:
            self.lost.add(cell)
            self._let_go(cell)
            self.outcome.waiting += len(self.grid.seeds) * len(self.entries[cell[1]])

    def _score(self, task: Task, result: Mapping[str, Any]) -> None:
        """Enter a candidate's score; with the last one the search goes on, or the runs begin."""
        compared = self.compared[task.cell]
        results = self.results.setdefault(task.cell, {})
        results[int(task.folder.name)] = result
        if len(results) < len(compared):
            return
        ordered = [results[index] for index in range(len(compared))]
        scores = [each["score"] for each in ordered]
        further = one_beyond(compared, scores)
        offered = len(self.grid.compared(task.config.method))
        if further is not None and len(compared) < offered + BEYOND:
            compared.append(further)
            self.tasks.append(self._candidate(*task.cell, len(compared) - 1))
            self.callback.search_goes_on(further)
        else:
            self._decide(task.cell, scores, ordered)

    def _decide(
        self,
        cell: tuple[str, str],
        scores: Sequence[float | None],
        results: Sequence[Mapping[str, Any]],
    ) -> None:
        stream, method = cell
        environments = [each["environment"] for each in results if "environment" in each]
        try:
            search = choose(
                self.grid.config(stream, Entry(method), SEED),
                self.compared[cell],
                scores,
                environments[0] if environments else {},
            )
            home = self.grid.home(stream, Entry(method))
            write_search(home, search)
            shutil.rmtree(home / "search", ignore_errors=True)
            self._let_go(cell)
            self.callback.search_done(search)
            self.tasks += self._runs(stream, method, search)
        except SodapError as error:
            self.outcome.failures[f"{place_of(stream)} {method}"] = str(error)
            self._give_up(cell)
