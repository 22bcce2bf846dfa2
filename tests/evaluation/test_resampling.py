"""Intervals over test images, against a naive bootstrap and against all possible draws."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sodap.errors import SodapError
from sodap.evaluation import difference_intervals, draw_results, metric_intervals, summary


def made(stages: int, sizes: list[int], seed: int = 0, level: float = 0.7) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.random((stages, size)) < level for size in sizes]


def test_draws_have_the_distribution_of_images_drawn_with_replacement() -> None:
    """Three images have 27 equally likely draws: the exact distribution of R."""
    right = np.array([[True, True, False], [True, False, False]])
    law: dict[tuple[float, ...], float] = {}
    for chosen in product(range(3), repeat=3):
        key = tuple(right[:, list(chosen)].mean(1).round(6).tolist())
        law[key] = law.get(key, 0.0) + 1 / 27
    drawn = draw_results([right], draws=20_000)[:, :, 0].round(6)
    found = {tuple(row): count / 20_000 for row, count in _counted(drawn)}
    assert found.keys() == law.keys()
    for key, share in law.items():
        assert found[key] == pytest.approx(share, abs=4 * (share / 20_000) ** 0.5)


def _counted(rows: np.ndarray) -> list[tuple[list[float], int]]:
    values, counts = np.unique(rows, axis=0, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


def test_intervals_match_a_naive_bootstrap() -> None:
    right = made(3, [60, 80, 50])
    generator = np.random.default_rng(7)
    naive = []
    for _ in range(4000):
        R = np.zeros((3, 3))
        for domain, table in enumerate(right):
            chosen = generator.integers(0, table.shape[1], table.shape[1])
            R[:, domain] = table[:, chosen].mean(1)
        naive.append(summary(R))
    ours = metric_intervals(right, draws=4000)
    for name, ends in ours.items():
        assert ends is not None
        values = np.array([each[name] for each in naive], dtype=float)
        low, high = np.quantile(values, [0.025, 0.975])
        assert ends.low == pytest.approx(low, abs=0.012)
        assert ends.high == pytest.approx(high, abs=0.012)
        value = summary(np.stack([table.mean(1) for table in right], 1))[name]
        assert value is not None
        if name != "average_forgetting":  # its maximum is biased upwards under noise
            assert ends.low <= value <= ends.high


def test_one_stage_has_no_interval_of_forgetting() -> None:
    ends = metric_intervals(made(1, [20, 20]))
    assert ends["average_forgetting"] is None
    assert ends["average_accuracy"] is not None


def test_a_run_does_not_differ_from_itself() -> None:
    right = made(3, [40, 40, 40])
    for ends in difference_intervals(right, right).values():
        assert ends == (0.0, 0.0)


def test_paired_intervals_are_narrower() -> None:
    """One run is right on all images of the other, and on ten more per domain."""
    base = made(2, [100, 100], level=0.6)
    better = [table.copy() for table in base]
    for table in better:
        table[:, :10] = True
    gap = difference_intervals(better, base)["final_average"]
    alone = metric_intervals(base)["final_average"]
    assert gap is not None
    assert alone is not None
    assert gap.low > 0
    assert gap.high - gap.low < alone.high - alone.low


def test_invalid_input() -> None:
    with pytest.raises(SodapError, match="same test images"):
        difference_intervals(made(2, [10, 10]), made(2, [10, 11]))
    with pytest.raises(SodapError):
        metric_intervals([np.zeros((2, 0), bool)])
