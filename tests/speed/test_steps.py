"""The benchmarks of training steps, at a small scale."""

from __future__ import annotations

import math

import pytest
from benchmarks import cpu, gpu
from benchmarks.figures import reached
from benchmarks.steps import make, race, step_ratio


def test_figures_of_a_cpu() -> None:
    found = cpu.start() | cpu.against_limit("micro", 2, rounds=1)
    assert all(value > 0 and math.isfinite(value) for value in found.values())
    wanted = {name for name in cpu.TARGETS if "deit_tiny" not in name and "entmax" not in name}
    assert wanted - found.keys() == {"stage50_vs_stage1"}
    assert found["cls_row_memory_vs_full_micro"] < 1


def test_contenders_take_turns() -> None:
    first, second = (make("sequential", "micro", 2, "cpu") for _ in range(2))
    race([first, second], rounds=3, times=1, warm_up=1)
    assert len(first.train_seconds) == len(second.infer_seconds) == 3
    first.train_seconds, second.train_seconds = [1.0, 8.0, 3.0], [2.0, 2.0, 2.0]
    assert step_ratio(first, second) == 1.5, "the median over rounds"


@pytest.mark.parametrize("targets", [cpu.TARGETS, gpu.TARGETS], ids=["cpu", "gpu"])
def test_every_target_has_a_direction(targets: dict[str, tuple[float, str]]) -> None:
    for bound, sign in targets.values():
        assert sign in (">=", "<=")
        assert reached(bound, bound, sign)
        assert not reached(bound - 1 if sign == ">=" else bound + 1, bound, sign)
