"""Timing of work on a device."""

from __future__ import annotations

import time

import torch


class DeviceTimer:
    """Time that a device spends on the work between the timer's creation and `stop`.

    Work on a GPU is queued long before it runs, so start and end are events in its queue. Neither
    creating nor stopping a timer waits for the device; `seconds` does.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.times: list[float] = []
        self.events: list[torch.cuda.Event] = []
        self._mark()

    def stop(self) -> None:
        """End the measured interval."""
        self._mark()

    def _mark(self) -> None:
        if self.stream is None:
            self.times.append(time.perf_counter())
        else:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(self.stream)
            self.events.append(event)

    def seconds(self) -> float:
        """Length of the interval; on a GPU, waits until its end is reached."""
        if self.stream is None:
            began, ended = self.times
            return ended - began
        first, last = self.events
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
