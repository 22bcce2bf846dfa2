"""One run of a grid or one candidate of a search, as a worker process does it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from sodap.grids.grid import folder_name
from sodap.grids.search import Setting, as_changes, validation_twin
from sodap.grids.workers import stop_if_orphaned
from sodap.runs.callback import RunCallback
from sodap.runs.config import RunConfig
from sodap.runs.record import EpochRow, RunContext, RunRecord
from sodap.runs.runner import run
from sodap.runs.stream import SPLITS, load_run_stream
from sodap.streams import Stage, Stream


@dataclass(frozen=True)
class Task:
    """Everything a worker needs for one run, or for one candidate of a search."""

    config: RunConfig
    folder: Path
    setting: Setting | None = None
    """The candidate's setting; None for a run."""
    command: Sequence[str] = ()
    context: RunContext = field(default_factory=RunContext)
    threads: int = 1

    @property
    def cell(self) -> tuple[str, str | None, str]:
        return self.config.stream, self.config.fold, self.config.method

    @property
    def label(self) -> str:
        stream, fold, method = self.cell
        if self.setting is None:
            row = self.context.variant or method
            return f"{cell_words(stream, fold, row)} seed {self.config.seed}"
        return f"{cell_words(stream, fold, method)} search {' '.join(as_changes(self.setting))}"


def cell_words(stream: str, fold: str | None, row: str) -> str:
    """`skin ridge`, or `skin fold 2/5 ridge`."""
    return f"{folder_name(stream)} {f'fold {fold} ' if fold else ''}{row}"


@dataclass(frozen=True)
class TaskOutput:
    """Result of a task."""

    record: RunRecord
    warnings: Sequence[str] = ()


class _StopIfOrphaned(RunCallback):
    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        stop_if_orphaned()


def run_task(task: Task) -> TaskOutput:
    """Do a task; called in a worker, many times."""
    torch.set_num_threads(min(task.threads, torch.get_num_threads()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            record = run(
                task.config,
                task.folder,
                resume=True,
                command=task.command,
                callback=_StopIfOrphaned(),
                stream=_stream(task),
                context=task.context,
            )
        finally:
            gc.collect()  # a method and its optimiser refer to each other
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # for the other workers
    own = [each for each in caught if each.category.__module__.startswith("sodap.")]
    return TaskOutput(record, [str(each.message) for each in own])


def decode(config: RunConfig, on_progress: Callable[[int, int], None]) -> None:
    """Fill the image cache of a stream before the workers start."""
    load_run_stream(config, on_progress=on_progress)


def _stream(task: Task) -> Stream | None:
    """The decoded stream, cached between runs; None for a resumed run with splits of its own."""
    if task.setting is not None:
        return validation_twin(_cached(_stream_key(task.config)))
    if (task.folder / SPLITS).exists():
        return None
    return _cached(_stream_key(task.config))


STREAM_KEYS = {
    *("stream", "data", "splits", "split_seed", "fold", "groups", "classes"),
    *("skip_unreadable", "backbone", "image_size"),
}
"""Settings that decide the images of a stream; runs with the same ones share a decoded stream."""


def _stream_key(config: RunConfig) -> str:
    return config.model_dump_json(include=STREAM_KEYS)


@lru_cache(maxsize=2)
def _cached(key: str) -> Stream:
    return load_run_stream(RunConfig.model_validate_json(key))
