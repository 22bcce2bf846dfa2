"""Files that are written while a run goes on: a GPU need not wait for a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

AT_ONCE = 32
"""So many may be waiting to be written; with more, the run waits for the disk after all."""


class Writer:
    """One file after the other, in the order in which they were handed over.

    What goes wrong is said by `check` or `wait`, and once.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._waiting: deque[Future[None]] = deque()

    def write(self, work: Callable[[], None]) -> Future[None]:
        """Let `work` be done. It should hold nothing that the run goes on to change."""
        if len(self._waiting) >= AT_ONCE:
            wait_for([self._waiting[-AT_ONCE]])
        written = self._thread.submit(work)
        self._waiting.append(written)
        return written

    def check(self) -> None:
        """Go on, unless something could not be written."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Until all is on disk."""
        wait_for(self._waiting)
        self.check()

    def settle(self) -> None:
        """Until nobody writes any more, well or badly: what ended the run is said already."""
        wait_for(self._waiting)
        self._waiting.clear()
