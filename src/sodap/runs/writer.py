"""Writing files in the background, so that a GPU need not wait for a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sodap.storage import save_state

MAX_PENDING = 32
"""Jobs that may wait for the disk; with more, the run waits."""


@dataclass(frozen=True)
class PendingWrite:
    """A state waiting to be written under `name` in `folder`; its tensors are on the CPU."""

    folder: Path
    name: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Any]

    def write(self) -> None:
        save_state(self.folder, self.name, self.tensors, self.metadata)


class Writer:
    """One background thread that runs writing jobs in order.

    Errors are raised by `check` or `wait`, each once.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._pending: deque[Future[None]] = deque()

    def write(self, *steps: Callable[[], None]) -> Future[None]:
        """Run `steps` in the background, one after the other.

        They must not use anything that the run changes afterwards.
        """
        if len(self._pending) >= MAX_PENDING:
            wait_for([self._pending[-MAX_PENDING]])
        job = self._thread.submit(_run_all, steps)
        self._pending.append(job)
        return job

    def check(self) -> None:
        """Raise the error of a finished job, if there is one."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def wait(self) -> None:
        """Wait until everything is on disk, and raise an error if it is not."""
        wait_for(self._pending)
        self.check()

    def settle(self) -> None:
        """Wait for pending jobs and ignore their errors."""
        wait_for(self._pending)
        self._pending.clear()


def _run_all(steps: tuple[Callable[[], None], ...]) -> None:
    for step in steps:
        step()
