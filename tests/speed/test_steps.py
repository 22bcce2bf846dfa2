"""The benchmarks measure what they say, on a small scale."""

from __future__ import annotations

import pytest
from benchmarks import cpu, gpu
from benchmarks.figures import reached
from benchmarks.steps import make, race, statistics_vs_epoch


def test_figures_of_a_processor() -> None:
    found = cpu.start() | cpu.against_limit("micro", 2, rounds=1)
    assert all(value > 0 for value in found.values())
    assert {"cls_row_step_vs_full_micro", "cls_row_memory_vs_full_micro"} <= found.keys()
    assert {"statistics_vs_epoch", "start_to_first_step_seconds"} <= found.keys()
    assert found["cls_row_memory_vs_full_micro"] < 1


def test_statistics_are_a_small_part() -> None:
    contender = make("residual-sodap", "micro", 16, "cpu")
    race([contender], rounds=1, times=1, warm_up=1)
    assert 0 < statistics_vs_epoch(contender) < 0.2


@pytest.mark.parametrize("targets", [cpu.TARGETS, gpu.TARGETS], ids=["cpu", "gpu"])
def test_every_target_has_a_side(targets: dict[str, tuple[float, str]]) -> None:
    for bound, sign in targets.values():
        assert sign in (">=", "<=")
        assert reached(bound, bound, sign)
        assert not reached(bound - 1 if sign == ">=" else bound + 1, bound, sign)
