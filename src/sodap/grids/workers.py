"""Processes that do tasks one after the other. One that dies costs the task it was at, no more.

Python's own pool gives up altogether when a process is killed, which on a machine that runs out of
memory is the normal case. Here each worker has a pipe of its own, so it is known who was at what.

A worker is a fresh process (`spawn`): a GPU cannot be shared with a fork. It imports torch once and
then works until it is told to stop.
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
from sodap.interruption import heed_sigterm

T = TypeVar("T")

PATIENCE_S = 30
"""How long a worker may take to write down where it stands before it is killed."""


@dataclass(frozen=True)
class TaskResult(Generic[T]):
    """How a task ended."""

    task: T
    result: Any = None
    error: SodapError | None = None
    """Why it failed; None if it succeeded."""
    trace: str = ""
    """The traceback of a bug; empty for an error that a user can fix."""


class _Worker(Generic[T]):
    """The parent's end of one process."""

    def __init__(self, work: Callable[[T], Any]) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(theirs, work), daemon=True
        )
        # Ctrl-C reaches every process of a terminal. Only the parent may answer it: the mask that
        # a worker is born with keeps it out, from before its first line of Python. The tracker
        # is a helper of Python's; were it started in between, it would take the mask off again.
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
        with suppress(OSError):  # it may have died while it waited; `collect` finds out
            self.pipe.send(task)

    def collect(self) -> TaskResult[T]:
        """Called when there is an answer, or nobody who could give one."""
        assert self.task is not None
        task, self.task = self.task, None
        try:
            result, error, trace = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(PATIENCE_S)
            cause = _cause(self.process.exitcode)
            return TaskResult(task, error=SodapError(f"the worker died ({cause})"))
        return TaskResult(task, result, error, trace)

    @property
    def alive(self) -> bool:
        return self.process.is_alive()


def work_off(tasks: deque[T], work: Callable[[T], Any], jobs: int) -> Generator[TaskResult[T]]:
    """Do all `tasks`, `jobs` at a time, and yield each report as it comes.

    `work` is called in the workers and must be importable there. Whoever reads the reports may
    append to `tasks`. Closing the iterator, or Ctrl-C, tells the workers to stop where they are.
    """
    workers: list[_Worker[T]] = []
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
        _dismiss(workers)


def _dismiss(workers: list[_Worker[Any]]) -> None:
    """Idle workers leave when their pipe closes; busy ones are asked to stop and write."""
    for worker in workers:
        if worker.task is not None:
            worker.process.terminate()
        worker.pipe.close()
    for worker in workers:
        worker.process.join(PATIENCE_S)
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
    heed_sigterm()
    try:
        while True:
            pipe.send(_attempt(work, pipe.recv()))
    except (KeyboardInterrupt, EOFError, OSError):
        return  # asked to stop, or nobody is left to answer


def _attempt(work: Callable[[Any], Any], task: Any) -> tuple[Any, SodapError | None, str]:
    try:
        return work(task), None, ""
    except SodapError as error:
        # The parent can load the classes of `sodap.errors`, but not those of every other package.
        known = next(
            kind for kind in type(error).__mro__ if kind.__module__ == SodapError.__module__
        )
        return None, known(str(error)), ""
    except Exception as error:
        return None, SodapError(f"{type(error).__name__}: {error}"), traceback.format_exc()


def stop_if_orphaned() -> None:
    """Nobody waits for the work of a worker whose parent was killed, and two must not do it."""
    parent = parent_process()
    if parent is not None and not parent.is_alive():
        raise KeyboardInterrupt
