"""Exact intervals and sums of it, against scipy and against every possible outcome."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from sodap.evaluation import exact_interval, is_tiny, tiny_tests
from sodap.evaluation.proportions import TINY_WIDTH, scaled, total

counts = st.integers(1, 400)


@given(counts.flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_interval_matches_scipy(found: tuple[int, int]) -> None:
    right, count = found
    theirs = stats.binomtest(right, count).proportion_ci(0.95, method="exact")
    assert exact_interval(right / count, count) == pytest.approx(
        (theirs.low, theirs.high), abs=1e-12
    )


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_three_images_are_never_certain(share: float) -> None:
    ends = exact_interval(share, 3)
    assert ends is not None
    assert ends.low <= share <= ends.high
    assert ends.high - ends.low > 0.5


def test_no_images_have_no_interval() -> None:
    assert exact_interval(0.0, 0) is None


@given(st.floats(0, 1), counts)
def test_the_interval_contains_the_share_and_stays_within_0_and_1(share: float, n: int) -> None:
    ends = exact_interval(share, n)
    assert ends is not None
    assert 0 <= ends.low <= share <= ends.high <= 1


def exact_coverage(sizes: tuple[int, ...], shares: tuple[float, ...]) -> float:
    """Probability that the interval of the mean over domains contains the true mean."""
    truth = float(np.mean(shares))
    held = 0.0
    for right in product(*(range(n + 1) for n in sizes)):
        ways = zip(right, sizes, shares, strict=True)
        probability = np.prod([stats.binom.pmf(k, n, p) for k, n, p in ways])
        parts = [scaled(k / n, n, 1 / len(sizes)) for k, n in zip(right, sizes, strict=True)]
        low, high = total(parts).interval
        held += probability * (low - 1e-12 <= truth <= high + 1e-12)
    return float(held)


@pytest.mark.parametrize("sizes", [(5,), (4, 9), (12, 3), (3, 4, 5)])
def test_coverage_of_a_mean_of_proportions(sizes: tuple[int, ...]) -> None:
    """By all outcomes: at least 95 % on average, and never below 94 %."""
    generator = np.random.default_rng(3)
    found = [
        exact_coverage(sizes, tuple(generator.uniform(0.05, 0.95, len(sizes)).tolist()))
        for _ in range(12)
    ]
    assert 0.95 <= np.mean(found) <= 0.995
    assert min(found) > 0.94


def test_resampling_would_claim_certainty() -> None:
    """What was wrong before: three images, all wrong, from 0.000 to 0.000."""
    low, high = total([scaled(0.0, 3, 1.0)]).interval
    assert low == 0
    assert high > 0.5


def test_tiny_test_splits_are_named_with_the_width_to_expect() -> None:
    said = tiny_tests([("zeiss", 12), ("topcon", 900), ("canon", 7)])
    assert "zeiss" in said
    assert "canon" in said
    assert "topcon" not in said
    theirs = stats.binomtest(4, 5).proportion_ci(0.95, method="exact")
    assert f"{theirs.low:.2f} to {theirs.high:.2f}" in tiny_tests([("only", 5)])
    assert tiny_tests([("topcon", 900)]) == ""
    assert tiny_tests([("empty", 0)])


@given(counts)
def test_a_split_is_tiny_if_an_accuracy_of_80_percent_is_uncertain(count: int) -> None:
    ends = exact_interval(0.8, count)
    assert ends is not None
    assert is_tiny(count) == (ends.high - ends.low > TINY_WIDTH)
