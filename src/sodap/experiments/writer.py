"""Files that are written while a run goes on: a GPU need not wait for a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

AT_ONCE = 32
"""So many may be waiting to be written; with more, the run waits for the disk after all."""


class Writer:
    """One file after the other, in the order in which they were handed over.

    What goes wrong is raised once, as soon as the run comes by again.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._waiting: deque[Future[None]] = deque()

    def write(self, work: Callable[[], None]) -> Future[None]:
        """Let `work` be done. It should refer to nothing that the run goes on to change."""
        while self._waiting and (len(self._waiting) >= AT_ONCE or self._waiting[0].done()):
            self._await_first()
        written = self._thread.submit(work)
        self._waiting.append(written)
        return written

    def wait(self) -> None:
        """Until all is on disk."""
        while self._waiting:
            self._await_first()

    def settle(self) -> None:
        """Until nobody writes any more, well or badly: what ended the run is said already."""
        while self._waiting:
            with suppress(Exception):
                self._await_first()

    def _await_first(self) -> None:
        first = self._waiting[0]
        try:
            first.result()
        finally:
            if first.done():  # and not, if this very wait was interrupted
                self._waiting.popleft()
