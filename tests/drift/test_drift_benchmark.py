"""The drift tests and corruptions that the benchmark compares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.corruptions import CORRUPTIONS, STRENGTHS, corrupted
from benchmarks.drift import TESTS, USAGE_TESTS, Rows, summary


def rows(count: int, shift: float, seed: int) -> Rows:
    """Gaussian features, and usage that moves from one prompt to another."""
    random = np.random.default_rng(seed)
    chosen = random.dirichlet([8 - 3 * shift, 1, 1 + 3 * shift], size=(count, 2))
    return Rows(random.standard_normal((count, 8)) + shift, chosen)


@pytest.mark.parametrize("name", TESTS)
def test_tests_of_features_find_a_shift_and_raise_few_false_alarms(name: str) -> None:
    false = sum(TESTS[name](rows(80, 0, s), rows(30, 0, 100 + s), s) <= 0.05 for s in range(20))
    assert false <= 5
    assert TESTS[name](rows(80, 0, 0), rows(30, 1.5, 1), 0) <= 0.01


@pytest.mark.parametrize("name", USAGE_TESTS)
def test_tests_of_usage_find_a_shift(name: str) -> None:
    assert USAGE_TESTS[name](rows(400, 0, 0), rows(50, 2, 1), 0) <= 0.05


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_stronger_corruption_changes_more(name: str) -> None:
    images = torch.randint(60, 190, (4, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    images = images.to(torch.uint8)
    changes = [
        float((corrupted(images, name, strength).float() - images.float()).abs().mean())
        for strength in STRENGTHS
    ]
    assert changes[0] > 0
    assert changes == sorted(changes)


def test_the_summary_averages_over_references() -> None:
    case = {"kind": "no drift", "count": 25, "repetitions": 10}
    text = summary([{**case, "alarms": {"ours": {"0.05": n}}} for n in (1, 4)])
    assert "0.250" in text
