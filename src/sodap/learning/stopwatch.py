"""How long a device takes for what it is given, without waiting for it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import torch


class Stopwatch:
    """`with Stopwatch(device) as watch: ...`, and later `watch.seconds()`.

    A GPU gets its work well ahead of doing it. So the moments are noted in its own queue, between
    pieces of work, and read when it has come that far.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.events = (
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            if device.type == "cuda"
            else []
        )
        self.moments = [0.0, 0.0]

    def __enter__(self) -> Self:
        self._note(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._note(1)

    def _note(self, which: int) -> None:
        if self.events:
            self.events[which].record(torch.cuda.current_stream(self.device))
        else:
            self.moments[which] = time.perf_counter()

    def seconds(self) -> float:
        """Of a GPU, it waits until the end is reached."""
        if not self.events:
            return self.moments[1] - self.moments[0]
        began, ended = self.events
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1000
