"""How long a device takes for what it is given, without waiting for it."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Runs from when it is made until `stop`; `seconds` tells how long that was.

    A GPU gets its work well ahead of doing it. So the moments are noted in its own queue, between
    pieces of work, and read when it has come that far.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.moments: list[float] = []
        self.events: list[torch.cuda.Event] = []
        self._note()

    def stop(self) -> None:
        self._note()

    def _note(self) -> None:
        if self.stream is None:
            self.moments.append(time.perf_counter())
        else:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(self.stream)
            self.events.append(event)

    def seconds(self) -> float:
        """Of a GPU, it waits until the end is reached."""
        if self.stream is None:
            began, ended = self.moments
            return ended - began
        first, last = self.events
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
