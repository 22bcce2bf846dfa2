"""The live monitor: its promise at any time, its speed, and the trap that it avoids."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from sodap.drift import Monitor, MonitorState
from sodap.drift.monitor import JUMPS, SLOPES
from sodap.errors import SodapError
from sodap.storage import load_state, save_state


def watch(monitor: Monitor, scores: np.ndarray) -> MonitorState:
    states = [monitor.update(float(score)) for score in scores]
    return states[-1]


def test_false_alarms_at_any_time_are_rarer_than_stated() -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for seed in range(200):
        monitor = Monitor(random.standard_normal(24), alpha=0.05, seed=seed)
        alarms += watch(monitor, random.standard_normal(150)).alarm
    assert alarms <= stats.binom(200, 0.05).ppf(0.999)


def test_a_small_fixed_calibration_set_would_lie() -> None:
    """Ranks against 24 fixed scores are not independent: the same bets raise many alarms."""
    random = np.random.default_rng(1)
    alarms = 0
    for seed in range(60):
        fixed = random.standard_normal(24)
        monitor, highest = Monitor(alpha=0.05, seed=seed), 0.0
        for score in random.standard_normal(300):
            larger = int((fixed > score).sum())
            monitor._bet((larger + random.uniform()) / (len(fixed) + 1))
            highest = max(highest, monitor._log_scale)
        alarms += highest >= math.log(20)
    assert alarms >= 12  # 3 are stated


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_a_shift_of_one_standard_deviation_is_found_soon(shift: float) -> None:
    random = np.random.default_rng(2)
    delays = []
    for seed in range(30):
        monitor = Monitor(random.standard_normal(100), alpha=0.05, seed=seed)
        state = watch(monitor, random.standard_normal(120) + shift)
        delays.append(state.alarm_at or 999)
    assert np.median(delays) <= 30


def test_a_drift_after_a_long_calm_is_found() -> None:
    random = np.random.default_rng(3)
    monitor = Monitor(random.standard_normal(50))
    assert not watch(monitor, random.standard_normal(500)).alarm
    state = watch(monitor, random.standard_normal(150) + 1.5)
    assert state.alarm_at is not None
    assert state.alarm_at > 500


def test_p_values_of_exchangeable_scores_are_uniform_even_with_ties() -> None:
    random = np.random.default_rng(4)
    monitor = Monitor()
    p_values = [monitor.update(float(random.integers(3))).p_value for _ in range(600)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_a_bet_is_fair() -> None:
    """The mean of the wealth over all p-values is the wealth before the bet."""
    points = (np.arange(1000) + 0.5) / 1000
    wealth = []
    for p in points:
        monitor = Monitor([0.0])
        for score in (1.0, 2.0, 0.5):
            monitor.update(score)
        before = monitor._log_scale
        monitor._bet(float(p))
        wealth.append(math.exp(monitor._log_scale - before))
    assert np.mean(wealth) == pytest.approx(1, abs=1e-6)
    assert min(wealth) > 0


@settings(max_examples=30, deadline=None)
@given(
    calibration=st.lists(st.floats(-5, 5), max_size=20),
    scores=st.lists(st.floats(-5, 5), min_size=2, max_size=40),
    cut=st.integers(1, 39),
)
def test_a_restored_monitor_goes_on_as_if_nothing_had_happened(
    calibration: list[float], scores: list[float], cut: int
) -> None:
    whole, part = (Monitor(calibration, alpha=0.1, seed=4) for _ in range(2))
    expected = watch(whole, np.array(scores))
    for score in scores[:cut]:
        part.update(score)
    part = Monitor.from_tensors(part.to_tensors())
    assert part.seen == min(cut, len(scores))
    for score in scores[cut:]:
        found = part.update(score)
        assert found.seen <= expected.seen
    for name, tensor in whole.to_tensors().items():
        torch.testing.assert_close(part.to_tensors()[name], tensor, rtol=0, atol=0)


@settings(max_examples=30, deadline=None)
@given(scores=st.lists(st.integers(-50, 50), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_only_the_order_of_scores_matters(scores: list[int], seed: int) -> None:
    """A monotone change of the score, and the order of the calibration, change nothing."""
    one = Monitor([1.0, 2.0, 3.0], seed=seed)
    other = Monitor([math.exp(0.3), math.exp(0.1), math.exp(0.2)], seed=seed)
    for score in scores:
        assert one.update(float(score)) == other.update(math.exp(score / 10))


def test_several_scores_of_a_group_count_once() -> None:
    one, other = Monitor([1.0, 2.0]), Monitor([1.0, 2.0])
    assert one.update([1.0, 2.0, 6.0]) == other.update(torch.tensor(3.0))
    assert one.seen == 1


def test_the_state_can_be_saved(tmp_path: Path) -> None:
    monitor = Monitor(torch.linspace(0, 1, 9), alpha=0.2)
    for score in (5.0,) * 12:
        state = monitor.update(score)
    save_state(tmp_path, "monitor", monitor.to_tensors(), {})
    loaded = Monitor.from_tensors(load_state(tmp_path, "monitor")[0])
    assert loaded.update(0.5).alarm_at == state.alarm_at


def test_bad_input_is_refused() -> None:
    with pytest.raises(SodapError, match="alpha"):
        Monitor(alpha=1.0)
    with pytest.raises(SodapError, match="finite"):
        Monitor([math.nan])
    monitor = Monitor()
    for bad in (math.inf, [], [[1.0]]):
        with pytest.raises(SodapError):
            monitor.update(bad)  # type: ignore[arg-type]
    assert monitor.seen == 0
    state = monitor.to_tensors()
    with pytest.raises(SodapError):
        Monitor.from_tensors({"scores": state["scores"]})
    with pytest.raises(SodapError):
        Monitor.from_tensors({**state, "capital": torch.ones(len(SLOPES), len(JUMPS) + 1)})
