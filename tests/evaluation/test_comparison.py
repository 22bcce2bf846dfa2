from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from sodap.errors import SodapError
from sodap.evaluation import accuracy, constant_confusions, macro_f1, paired_bootstrap, spread
from sodap.evaluation.comparison import tail

numbers = st.lists(st.floats(-1, 1), min_size=2, max_size=12)


@given(numbers)
def test_the_interval_is_students(values: list[float]) -> None:
    found = spread(values)
    assert found.count == len(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    if found.sd:
        low, high = stats.t.interval(
            0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values)
        )
        assert (found.low, found.high) == pytest.approx((low, high))


def test_a_number_from_the_table_of_t() -> None:
    found = spread([1.0, 2.0, 4.0])
    assert found.high is not None
    assert found.high - found.mean == pytest.approx(4.30265 * 1.527525 / 3**0.5, rel=1e-5)


def test_one_seed_has_no_spread() -> None:
    found = spread([0.5])
    assert (found.mean, found.sd, found.low, found.high) == (0.5, None, None, None)
    gap = paired_bootstrap([0.5], [0.25])
    assert (gap.mean, gap.low, gap.high, gap.sign) == (0.25, None, None, 0)


@pytest.mark.parametrize("count", [5, 12])
def test_the_bootstrap_is_scipys_at_the_level_that_few_seeds_need(count: int) -> None:
    drawn = np.random.default_rng(3)
    first, second = drawn.normal(0.8, 0.02, count), drawn.normal(0.79, 0.03, count)
    found = paired_bootstrap(first.tolist(), second.tolist())
    theirs = stats.bootstrap(
        (first, second),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=1 - 2 * tail(count),
        n_resamples=50_000,
        rng=np.random.default_rng(4),
    ).confidence_interval
    assert found.mean == pytest.approx(np.mean(first - second))
    tolerance = 0.1 * float(np.std(first - second))
    assert found.low == pytest.approx(theirs.low, abs=tolerance)
    assert found.high == pytest.approx(theirs.high, abs=tolerance)


def test_pairs_matter() -> None:
    """Both vary with the seed by far more than they differ: only the pairs tell."""
    first = [0.5, 0.6, 0.7, 0.8, 0.9]
    second = [
        value - gap for value, gap in zip(first, [0.01, 0.012, 0.008, 0.011, 0.009], strict=True)
    ]
    assert paired_bootstrap(first, second).sign == 1
    assert paired_bootstrap(second, first).sign == -1
    assert paired_bootstrap(first, second[::-1]).sign == 0
    sure = paired_bootstrap([0.9, 0.9001], [0.1, 0.1002])
    assert sure.student.low is not None
    assert sure.student.low > 0
    assert sure.sign == 0, "two seeds say nothing of the noise"


def test_the_draws_are_always_the_same() -> None:
    first, second = [0.1, 0.4, 0.3, 0.9, 0.2], [0.2, 0.1, 0.0, 0.4, 0.3]
    assert paired_bootstrap(first, second) == paired_bootstrap(first, second)


def test_two_seeds_of_one_sign_are_not_believed() -> None:
    gap = paired_bootstrap([0.5, 0.9], [0.4, 0.2])
    assert gap.low is not None
    assert gap.low > 0
    assert gap.sign == 0


@pytest.mark.parametrize(
    ("count", "least", "most"), [(3, 0.70, 0.80), (5, 0.89, 0.96), (20, 0.93, 0.98)]
)
def test_coverage(count: int, least: float, most: float) -> None:
    """How often the interval holds the truth, by simulation; what the docstring promises."""
    drawn = np.random.default_rng(7)
    held = 0
    rounds = 400
    for _ in range(rounds):
        found = paired_bootstrap(drawn.standard_normal(count).tolist(), [0.0] * count, draws=4000)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert least <= held / rounds <= most


def test_a_claim_is_rarely_wrong() -> None:
    """Of methods that are equal, few pairs are called different, even with three seeds."""
    drawn = np.random.default_rng(8)
    claims = [
        paired_bootstrap(drawn.standard_normal(3).tolist(), [0.0] * 3, draws=500).sign != 0
        for _ in range(600)
    ]
    assert np.mean(claims) < 0.08


def test_what_cannot_be_compared() -> None:
    with pytest.raises(SodapError, match="make no pairs"):
        paired_bootstrap([1.0], [1.0, 2.0])
    with pytest.raises(SodapError, match="finite"):
        spread([])
    with pytest.raises(SodapError, match="finite"):
        spread([float("nan")])


def test_the_constant_classifier() -> None:
    first, second = constant_confusions([3, 9, 1], [[2, 5, 3], [4, 0, 0]])
    assert first.tolist() == [[0, 2, 0], [0, 5, 0], [0, 3, 0]]
    assert accuracy(first) == 0.5
    assert accuracy(second) == 0.0
    # By hand: class 1 has F1 = 2*5 / (10 + 5), the others 0.
    assert macro_f1(first) == pytest.approx((10 / 15) / 3)
    assert constant_confusions([4, 4], [[1, 3]])[0].tolist() == [[1, 0], [3, 0]]
