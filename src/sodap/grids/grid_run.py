"""Running a grid with worker processes.

A grid can be started again at any time: finished runs are skipped, interrupted ones resumed, failed
ones repeated. It can also be started several times at once: each process does what no other process
is doing.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from time import sleep
from typing import Any

from sodap.errors import FolderBusyError, SodapError, TrainingBrokeError
from sodap.grids.grid import Grid
from sodap.grids.search import (
    MAX_EXTENSIONS,
    SEED,
    SearchRecord,
    Setting,
    check_searched,
    choose,
    next_candidate,
    read_search,
    write_search,
)
from sodap.grids.task import Task, TaskOutput, cell_words, decode, run_task
from sodap.grids.variants import Entry
from sodap.grids.workers import TaskResult, run_tasks
from sodap.runs.record import RunContext, RunRecord, SearchInfo
from sodap.runs.runner import check_folder
from sodap.storage import folder_lock, write_bytes
from sodap.streams import stream_names

POLL_S = 1.0
"""Seconds between polls for a free folder."""


class GridCallback:
    """Grid callbacks; the base class ignores them."""

    def images_decoded(self, done: int, total: int) -> None: ...

    def planned(self, tasks: int, finished: int) -> None:
        """Called with the number of tasks to do, searches included, and of finished runs."""

    def search_extended(self, setting: Setting) -> None:
        """Called when a search gets one more candidate than planned."""

    def task_done(self, task: Task, record: RunRecord | None) -> None:
        """Called when a task is done; the record is None for a candidate whose training broke."""

    def task_failed(self, task: Task, error: str) -> None: ...

    def search_done(self, search: SearchRecord) -> None: ...

    def warned(self, message: str) -> None: ...


@dataclass
class GridSummary:
    """How many runs of a grid are done, and what failed."""

    finished: int = 0
    """Runs that were finished before."""
    done: int = 0
    """Runs that were finished now."""
    failures: dict[str, str] = field(default_factory=dict)
    """Failed tasks, each with one line that says why."""
    not_started: int = 0
    """Runs that were not started because their search failed."""


def run_grid(grid: Grid, callback: GridCallback | None = None) -> GridSummary:
    """Search where there is something to choose, then run what is not finished."""
    grid.check()
    return _GridRun(grid, callback or GridCallback()).work()


Cell = tuple[str, str | None, str]
"""A stream, a fold and a method; the variants of a method share its search."""


class _GridRun:
    """A grid in progress."""

    def __init__(self, grid: Grid, callback: GridCallback) -> None:
        self.grid, self.callback = grid, callback
        self.summary = GridSummary()
        self.tasks: deque[Task] = deque()
        self.threads = max(1, len(os.sched_getaffinity(0)) // max(1, grid.jobs))
        self.entries: dict[str, list[Entry]] = {}  # by method
        for entry in grid.entries:
            self.entries.setdefault(entry.method, []).append(entry)
        # The candidates of each search of this process, and by their index what came out.
        self.compared: dict[Cell, list[Setting]] = {}
        self.results: dict[Cell, dict[int, RunRecord | None]] = {}
        self.failed: set[Cell] = set()  # whose search failed
        self.locks: dict[Cell, ExitStack] = {}  # of the searches of this process
        # What other processes are doing: searches, and runs.
        self.searched_elsewhere: list[Cell] = []
        self.run_elsewhere: list[Task] = []
        self.warned: set[str] = set()

    def work(self) -> GridSummary:
        try:
            self._plan()
            while self.tasks or self.searched_elsewhere or self.run_elsewhere:
                with closing(run_tasks(self.tasks, run_task, self.grid.jobs)) as results:
                    for result in results:
                        self._take(result)
                self._poll_others()
        finally:
            for cell in list(self.locks):
                self._unlock(cell)
        return self.summary

    # ------------------------------------------------------------------ planning

    def _plan(self) -> None:
        later: list[Task] = []
        expected = 0  # runs that wait for a search
        for cell in product(self.grid.streams, self.grid.parts, self.entries):
            tasks = self._plan_cell(*cell)
            if tasks is None:
                self.searched_elsewhere.append(cell)
            elif cell in self.compared:
                self.tasks += tasks
            else:
                later += tasks
                continue
            expected += len(self.grid.seeds) * len(self.entries[cell[-1]])
        self.tasks += later  # searches first, because runs wait for them
        if self.tasks:
            self._decode()
        self.callback.planned(len(self.tasks) + expected, self.summary.finished)

    def _plan_cell(self, stream: str, fold: str | None, method: str) -> list[Task] | None:
        """The first tasks of a cell; None while another process searches for it."""
        compared = self.grid.compared(method)
        cell = stream, fold, method
        base = self.grid.config(stream, Entry(method), SEED, fold=fold)
        home = self.grid.home(stream, Entry(method), fold)
        search = read_search(home, base, compared)
        if search is None and compared:
            try:
                check_searched(home)
                lock = ExitStack()
                lock.enter_context(folder_lock(home))
                self.locks[cell] = lock
            except FolderBusyError:
                return None
            except SodapError:
                if read_search(home, base, compared) is None:
                    raise
            search = read_search(home, base, compared)  # another process may have written it since
        if search is not None or not compared:
            self._unlock(cell)
            return self._runs(cell, search)
        self.compared[cell] = compared
        return [self._candidate(cell, index) for index in range(len(compared))]

    def _candidate(self, cell: Cell, index: int) -> Task:
        stream, fold, method = cell
        entry, setting = Entry(method), self.compared[cell][index]
        no_extras = {"evidence": False, "keep_stages": False}  # candidates have no report
        return Task(
            self.grid.config(stream, entry, SEED, setting, fold).model_copy(update=no_extras),
            self.grid.home(stream, entry, fold) / "search" / str(index),
            setting,
            command=self.grid.command,
            threads=self.threads,
        )

    def _runs(self, cell: Cell, search: SearchRecord | None) -> list[Task]:
        """The runs of a cell that are not finished, with those of its variants."""
        stream, fold, method = cell
        tasks, jobs = [], max(1, self.grid.jobs)
        known = chosen = None
        if search is not None:
            known = SearchInfo(**{key: getattr(search, key) for key in SearchInfo.model_fields})
            chosen = search.chosen
        # Seed by seed, so that a table of unfinished rows compares the same seeds.
        for seed in self.grid.seeds:
            for entry in self.entries[method]:
                context = RunContext(jobs=jobs, search=known, variant=entry.variant)
                config = self.grid.config(stream, entry, seed, chosen, fold)
                folder = self.grid.home(stream, entry, fold) / f"s{seed}"
                if check_folder(config, folder, resume=True) is not None:
                    self.summary.finished += 1
                    continue
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
        """Fill the image caches in this process, where the user sees the progress."""
        needed = {(task.config.stream, task.config.fold): task.config for task in self.tasks}
        for (stream, _), config in needed.items():
            if stream not in stream_names():  # those are generated in memory by each worker
                decode(config, self.callback.images_decoded)

    # ------------------------------------------------------------------ other processes

    def _poll_others(self) -> None:
        """Take over what other processes have finished or given up."""
        free = [task for task in self.run_elsewhere if is_free(task.folder)]
        self.run_elsewhere = [task for task in self.run_elsewhere if task not in free]
        self.tasks += free  # to be found finished, or to be resumed
        for cell in list(self.searched_elsewhere):
            tasks = self._plan_cell(*cell)
            if tasks is not None:
                self.searched_elsewhere.remove(cell)
                self.tasks += tasks
        if self.tasks:
            self._decode()
        elif self.searched_elsewhere or self.run_elsewhere:
            sleep(POLL_S)

    def _unlock(self, cell: Cell) -> None:
        """Let other processes use the result of a search."""
        self.locks.pop(cell, ExitStack()).close()

    # ------------------------------------------------------------------ results

    def _take(self, result: TaskResult[Task, TaskOutput]) -> None:
        task = result.task
        if isinstance(result.error, FolderBusyError):
            self.run_elsewhere.append(task)
            return
        for message in result.value.warnings if result.value is not None else ():
            if message not in self.warned:
                self.warned.add(message)
                self.callback.warned(message)
        # A setting that cannot be trained has a result: no score. Other errors (memory, disk) say
        # nothing about the setting.
        broke = task.setting is not None and isinstance(result.error, TrainingBrokeError)
        error = error_line(result)
        if error is not None and not broke:
            self.summary.failures[task.label] = error
            if task.setting is not None:
                self._give_up(task.cell)
            self.callback.task_failed(task, error)
            return
        record = result.value.record if result.value is not None else None
        self.callback.task_done(task, record)
        if task.setting is None:
            self.summary.done += 1
        else:
            self._score(task, record)

    def _give_up(self, cell: Cell) -> None:
        """Count the runs of a failed search as not started, and do so only once."""
        if cell not in self.failed:
            self.failed.add(cell)
            self._unlock(cell)
            self.summary.not_started += len(self.grid.seeds) * len(self.entries[cell[-1]])

    def _score(self, task: Task, record: RunRecord | None) -> None:
        """Note the result of a candidate; after the last one, extend or end the search."""
        compared = self.compared[task.cell]
        results = self.results.setdefault(task.cell, {})
        results[int(task.folder.name)] = record
        if len(results) < len(compared):
            return
        records = [results[index] for index in range(len(compared))]
        further = next_candidate(compared, [score_of(each) for each in records])
        offered = len(self.grid.compared(task.config.method))
        if further is not None and len(compared) < offered + MAX_EXTENSIONS:
            compared.append(further)
            self.tasks.append(self._candidate(task.cell, len(compared) - 1))
            self.callback.search_extended(further)
        else:
            self._decide(task.cell, records)

    def _decide(self, cell: Cell, records: Sequence[RunRecord | None]) -> None:
        stream, fold, method = cell
        environments = [each.environment for each in records if each is not None]
        try:
            search = choose(
                self.grid.config(stream, Entry(method), SEED, fold=fold),
                self.compared[cell],
                [score_of(each) for each in records],
                environments[0] if environments else None,
            )
            home = self.grid.home(stream, Entry(method), fold)
            write_search(home, search)
            shutil.rmtree(home / "search", ignore_errors=True)
            self._unlock(cell)
            self.callback.search_done(search)
            self.tasks += self._runs(cell, search)
        except SodapError as error:
            self.summary.failures[cell_words(*cell)] = str(error)
            self._give_up(cell)


def score_of(record: RunRecord | None) -> float | None:
    """Score of a candidate: final average accuracy on validation images; None if it broke."""
    if record is None or record.metrics.accuracy is None:
        return None
    return record.metrics.accuracy.final_average


def is_free(folder: Path) -> bool:
    """Whether no process holds the lock of a folder; a run reports any other problem with it."""
    try:
        with folder_lock(folder):
            return True
    except FolderBusyError:
        return False
    except SodapError:
        return True


def error_line(result: TaskResult[Task, Any]) -> str | None:
    """Why a task failed, in one line; the traceback of a bug is written beside its folder."""
    folder = result.task.folder
    path = folder.with_name(f"{folder.name}.error.txt")
    if not result.traceback:
        path.unlink(missing_ok=True)
        return None if result.error is None else str(result.error)
    write_bytes(path, result.traceback.encode())
    return f"{result.error} (see {path})"
