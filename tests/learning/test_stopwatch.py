"""Time as the device sees it; that of a GPU is in tests/test_gpu.py."""

from __future__ import annotations

import time

import pytest
import torch

from sodap.learning.stopwatch import Stopwatch


def test_a_processor_is_timed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([5.0, 7.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    watch = Stopwatch(torch.device("cpu"))
    watch.stop()
    assert watch.seconds() == watch.seconds() == 2.5
