"""One run of a grid, or one candidate of a search: what a worker is told, and what it then does."""

from __future__ import annotations

import gc
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from sodap.backbones import native_size
from sodap.errors import FolderBusyError, SodapError
from sodap.grids.search import Setting, as_changes, score_of, validation_twin
from sodap.grids.workers import TaskResult, stop_if_orphaned, work_off
from sodap.runs.callback import RunCallback
from sodap.runs.config import RunConfig
from sodap.runs.run import SPLITS, run
from sodap.storage import folder_lock, write_bytes
from sodap.streams import Stage, Stream, load_stream


@dataclass(frozen=True)
class Task:
    """One run, or one candidate of a search; all that a worker needs to know."""

    config: RunConfig
    folder: Path
    setting: Setting | None = None
    """Of a candidate; None for a run."""
    command: Sequence[str] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1

    @property
    def cell(self) -> tuple[str, str]:
        return self.config.stream, self.config.method

    @property
    def label(self) -> str:
        stream, method = place_of(self.config.stream), self.config.method
        if self.setting is None:
            name = self.context.get("variant") or method
            return f"{stream} {name} seed {self.config.seed}"
        return f"{stream} {method} search {' '.join(as_changes(self.setting))}"


T = TypeVar("T", bound=Task)

PAUSE_S = 1.0
"""Between two looks whether another process has ended."""


def place_of(stream: str) -> str:
    """The name of a stream's folder: its own name, or that of the images it is made of."""
    return Path(stream).resolve().stem


class _Guard(RunCallback):
    def epoch_done(self, stage: Stage, row: Mapping[str, Any]) -> None:
        stop_if_orphaned()


def performed(tasks: deque[T], jobs: int) -> Generator[TaskResult[T]]:
    """Do all `tasks`, to which the reader may add, and report on each.

    Several processes may work off one grid: what another one is at is put aside, and waited for
    when nothing else is left to do. It is then given again, to be found finished or to go on.
    """
    aside: list[T] = []
    while tasks or aside:
        if not tasks:
            tasks.extend(task for task in aside if is_free(task.folder))
            aside = [task for task in aside if task not in tasks]
            if not tasks:
                time.sleep(PAUSE_S)
                continue
        with closing(work_off(tasks, perform, jobs)) as reports:
            for report in reports:
                if isinstance(report.error, FolderBusyError):
                    aside.append(report.task)
                else:
                    yield report


def is_free(folder: Path) -> bool:
    """Whether no process holds the lock of a folder; a run reports any other problem with it."""
    try:
        with folder_lock(folder):
            return True
    except FolderBusyError:
        return False
    except SodapError:
        return True


def error_line(report: TaskResult[Any]) -> str | None:
    """Why a task failed, in one line; a fault of the program is written out beside its folder."""
    folder: Path = report.task.folder
    path = folder.with_name(f"{folder.name}.error.txt")
    if not report.trace:
        path.unlink(missing_ok=True)
        return None if report.error is None else str(report.error)
    write_bytes(path, report.trace.encode())
    return f"{report.error} (see {path})"


def perform(task: Task) -> dict[str, Any]:
    """Do a task; called in a worker, many times."""
    torch.set_num_threads(min(task.threads, torch.get_num_threads()))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            record = run(
                task.config,
                task.folder,
                resume=True,
                command=task.command,
                callback=_Guard(),
                stream=_stream(task),
                context=task.context,
            )
        finally:
            gc.collect()  # a method and its optimiser point at each other
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # what this worker holds, the others cannot have
    result = {
        "seconds": sum(stage["seconds"] for stage in record["stages"]),
        "warnings": [
            str(each.message) for each in heard if each.category.__module__.startswith("sodap.")
        ],
    }
    if task.setting is not None:
        return result | {"score": score_of(record), "environment": record["environment"]}
    return result | {"metrics": record["metrics"]["accuracy"]}


def decode(config: RunConfig, on_progress: Callable[[int, int], None]) -> None:
    """Read the images of a run's stream before the workers do: they find it done."""
    _load(*_place(config), on_progress=on_progress)


def _stream(task: Task) -> Stream | None:
    """The decoded stream, kept from run to run; None for a run with splits of its own to go on."""
    if task.setting is not None:
        return validation_twin(_kept(*_place(task.config)))
    return None if (task.folder / SPLITS).exists() else _kept(*_place(task.config))


def _place(config: RunConfig) -> tuple[str, int, str | None, int, str | None]:
    """Which images, and how large: runs that agree in this share one decoded stream."""
    size = config.image_size or native_size(config.backbone)
    return config.stream, size, config.data, config.split_seed, config.splits


def _load(
    name: str,
    size: int,
    data: str | None,
    split_seed: int,
    splits: str | None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Stream:
    return load_stream(
        name, size, data=data, split_seed=split_seed, splits=splits, on_progress=on_progress
    )


_kept = lru_cache(maxsize=2)(_load)
