"""Timing on a CPU; that on a GPU is tested in tests/test_gpu.py."""

from __future__ import annotations

import time

import torch

from sodap.execution import DeviceTimer

CPU = torch.device("cpu")


def test_a_cpu_timer_covers_the_work_up_to_its_stop_and_no_more() -> None:
    before = time.perf_counter()
    outer = DeviceTimer(CPU)
    inner = DeviceTimer(CPU)
    sum(range(10_000))
    inner.stop()
    worked = inner.seconds()
    sum(range(10_000))
    outer.stop()
    after = time.perf_counter()
    assert 0 < worked < outer.seconds() <= after - before
    assert inner.seconds() == worked, "later work does not count"
