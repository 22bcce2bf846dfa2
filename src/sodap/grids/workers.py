"""Worker processes that do tasks one after the other.

Python's own process pool stops altogether when a process is killed, which is what happens when
memory runs out. Here each worker has a pipe of its own, so that a killed worker costs only the task
it was doing.

A worker is a fresh process (`spawn`), because CUDA does not survive a fork. It imports torch once
and then does many tasks.
"""

from __future__ import annotations

import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

from sodap.errors import SodapError
from sodap.interruption import interrupt_on_sigterm

T = TypeVar("T")
R = TypeVar("R")

STOP_TIMEOUT_S = 30
"""Seconds that a worker has to save its state before it is killed."""


@dataclass(frozen=True)
class TaskResult(Generic[T, R]):
    """Result or error of a task."""

    task: T
    value: R | None = None
    error: SodapError | None = None
    """Why it failed; None if it succeeded."""
    traceback: str = ""
    """The traceback of a bug; empty for an error that a user can fix."""


class _Worker(Generic[T, R]):
    """The parent's side of one process."""

    def __init__(self, work: Callable[[T], R]) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(theirs, work), daemon=True
        )
        # Ctrl-C reaches every process of a terminal, but only the parent may react. So a worker
        # starts with SIGINT blocked. Starting Python's resource tracker would unblock it again,
        # therefore the tracker is started before.
        resource_tracker.ensure_running()
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
        theirs.close()
        self.task: T | None = None

    def give(self, task: T) -> None:
        self.task = task
        with suppress(OSError):  # if it died while it was idle, `collect` reports it
            self.pipe.send(task)

    def collect(self) -> TaskResult[T, R]:
        """Read the result; called when there is one, or when the process has died."""
        assert self.task is not None
        task, self.task = self.task, None
        try:
            return TaskResult(task, *self.pipe.recv())
        except (EOFError, OSError):
            self.process.join(STOP_TIMEOUT_S)
            cause = _cause(self.process.exitcode)
            return TaskResult(task, error=SodapError(f"the worker died ({cause})"))

    @property
    def alive(self) -> bool:
        return self.process.is_alive()


def run_tasks(tasks: deque[T], work: Callable[[T], R], jobs: int) -> Generator[TaskResult[T, R]]:
    """Do all `tasks`, `jobs` at a time, and yield each result as it comes.

    `work` is called in the workers and must be importable there. The consumer may append to
    `tasks`. Closing the iterator, or Ctrl-C, tells the workers to save their state and stop. With
    `jobs=0` the tasks are done in this process.
    """
    while tasks and jobs == 0:
        task = tasks.popleft()
        yield TaskResult(task, *_attempt(work, task))
    workers: list[_Worker[T, R]] = []
    try:
        while tasks or any(worker.task is not None for worker in workers):
            workers = [worker for worker in workers if worker.alive or worker.task is not None]
            for worker in workers:
                if tasks and worker.task is None:
                    worker.give(tasks.popleft())
            while tasks and len(workers) < jobs:
                workers.append(_Worker(work))
                workers[-1].give(tasks.popleft())
            busy = {worker.pipe: worker for worker in workers if worker.task is not None}
            for pipe in connection.wait(list(busy)):
                yield busy[pipe].collect()  # type: ignore[index]
    finally:
        _stop(workers)


def _stop(workers: list[_Worker[Any, Any]]) -> None:
    """Idle workers end when their pipe closes; busy ones get SIGTERM, so that state is saved."""
    for worker in workers:
        if worker.task is not None:
            worker.process.terminate()
        worker.pipe.close()
    for worker in workers:
        worker.process.join(STOP_TIMEOUT_S)
        if worker.alive:
            worker.process.kill()
            worker.process.join()


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{name}; memory may have run out" if name == "SIGKILL" else name
    return f"exit code {code}"


# ---------------------------------------------------------------------- in the worker


def _serve(pipe: connection.Connection[Any, Any], work: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupt_on_sigterm()
    try:
        while True:
            pipe.send(_attempt(work, pipe.recv()))
    except (KeyboardInterrupt, EOFError, OSError):
        return  # asked to stop, or the parent is gone


def _attempt(work: Callable[[T], R], task: T) -> tuple[R | None, SodapError | None, str]:
    """Value, error and traceback of a task."""
    try:
        return work(task), None, ""
    except SodapError as error:
        # The parent can load the classes of `sodap.errors`, but not those of every other package.
        known = next(k for k in type(error).__mro__ if k.__module__ == SodapError.__module__)
        return None, known(str(error)), ""
    except Exception as error:
        return None, SodapError(f"{type(error).__name__}: {error}"), traceback.format_exc()


def stop_if_orphaned() -> None:
    """Interrupt a worker whose parent was killed; the next start of the grid repeats its task."""
    parent = parent_process()
    if parent is not None and not parent.is_alive():
        raise KeyboardInterrupt
