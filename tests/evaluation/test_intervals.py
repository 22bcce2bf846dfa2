"""Intervals of metrics over test images: their coverage, against the true R of known models."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.evaluation import difference_intervals, exact_interval, metric_intervals, summary
from sodap.evaluation.intervals import metric_weights

STAGES = 3
PATTERNS = np.array(list(product([False, True], repeat=STAGES)))
"""All outcomes of an image `[8, T]`."""


def law(kind: str, generator: np.random.Generator) -> NDArray[np.float64]:
    """Probability of every pattern for an image of one domain."""
    if kind == "certain":  # almost always right
        share = np.where(PATTERNS, 0.97, 0.03).prod(1)
    elif kind == "hopeless":
        share = np.where(PATTERNS, 0.03, 0.97).prod(1)
    elif kind == "steady":  # an image is right after all stages, or after none
        share = np.full(len(PATTERNS), 0.002)
        share[0], share[-1] = 0.2, 0.788
    else:
        share = generator.dirichlet(np.full(len(PATTERNS), 0.5))
    return np.asarray(share / share.sum())


def drawn(
    laws: list[NDArray[np.float64]], sizes: list[int], generator: np.random.Generator
) -> list[NDArray[np.bool_]]:
    """Outcomes `[T, N]` of each domain."""
    return [
        PATTERNS[generator.choice(len(PATTERNS), size, p=each)].T
        for each, size in zip(laws, sizes, strict=True)
    ]


@pytest.mark.parametrize("kind", ["certain", "hopeless", "steady", "any"])
@pytest.mark.parametrize("sizes", [[3, 3, 3], [6, 25, 12], [120, 60, 90]])
def test_coverage(kind: str, sizes: list[int]) -> None:
    """The true metrics of a model lie in 95 % of its intervals or more (400 draws of each kind)."""
    generator = np.random.default_rng(5)
    held: dict[str, list[bool]] = {}
    for _ in range(20):
        laws = [law(kind, generator) for _ in range(STAGES)]
        truth = summary(np.stack([each @ PATTERNS for each in laws], 1))
        for _ in range(20):
            right = drawn(laws, sizes, generator)
            R = np.stack([table.mean(1) for table in right], 1)
            for name, ends in metric_intervals(R, sizes, right).items():
                value = truth[name]
                if ends is not None:
                    assert value is not None
                    inside = ends.low - 1e-12 <= value <= ends.high + 1e-12
                    held.setdefault(name, []).append(inside)
    assert held.keys() == {"average_accuracy", "final_average", "backward_transfer"}
    for name, found in held.items():
        assert np.mean(found) > 0.93, name


def test_intervals_of_many_images_are_as_narrow_as_normal_theory() -> None:
    generator = np.random.default_rng(2)
    laws, sizes = [law("steady", generator) for _ in range(STAGES)], [4000] * STAGES
    right = drawn(laws, sizes, generator)
    R = np.stack([table.mean(1) for table in right], 1)
    found = metric_intervals(R, sizes, right)
    for name, weights in metric_weights(STAGES).items():
        ends = found[name]
        if weights is None:
            assert ends is None
            continue
        scores = [PATTERNS @ weights[:, domain] for domain in range(STAGES)]
        variance = sum(
            float(each @ score**2 - (each @ score) ** 2) / size
            for each, score, size in zip(laws, scores, sizes, strict=True)
        )
        assert ends is not None
        assert ends.high - ends.low == pytest.approx(2 * 1.96 * variance**0.5, rel=0.25)


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=9), min_size=1, max_size=4))
def test_weights_are_those_of_the_metrics(rows: list[list[bool]]) -> None:
    stages = len(rows)
    R = np.array([[sum(row) / (len(row) + d) for d in range(stages)] for row in rows])
    known = summary(R)
    for name, weights in metric_weights(stages).items():
        if weights is not None:
            assert (weights * R).sum() == pytest.approx(known[name])


def test_one_domain_is_a_plain_proportion() -> None:
    right = [np.array([[True, True, False, True]])]
    found = metric_intervals([[0.75]], [4], right)
    assert found["average_accuracy"] == pytest.approx(exact_interval(0.75, 4))
    assert found["average_forgetting"] is None
    assert found["backward_transfer"] is None


def test_without_outcomes_only_backward_transfer_has_no_interval() -> None:
    found = metric_intervals([[0.5, 0.0], [0.5, 1.0]], [10, 10])
    assert [name for name, ends in found.items() if ends is None] == [
        "average_forgetting",
        "backward_transfer",
    ]


def test_no_images_have_no_interval() -> None:
    assert set(metric_intervals([[0.5, 0.0], [0.5, 1.0]], [10, 0]).values()) == {None}


def made(sizes: list[int], level: float = 0.7) -> list[NDArray[np.bool_]]:
    generator = np.random.default_rng(0)
    return [generator.random((2, size)) < level for size in sizes]


def test_equal_runs_do_not_differ_but_on_other_images_they_might() -> None:
    few, many = (difference_intervals(made([n, n]), made([n, n])) for n in (10, 1000))
    for name in ("average_accuracy", "final_average", "backward_transfer"):
        wide, narrow = few[name], many[name]
        assert wide is not None
        assert narrow is not None
        assert wide.low < narrow.low < 0 < narrow.high < wide.high
        assert narrow.high < 0.01


def test_paired_intervals_are_narrower() -> None:
    """One run is right on all images of the other, and on ten more per domain."""
    base = made([100, 100], level=0.6)
    better = [table.copy() for table in base]
    for table in better:
        table[:, :10] = True
    gap = difference_intervals(better, base)["final_average"]
    R = np.stack([table.mean(1) for table in base], 1)
    alone = metric_intervals(R, [100, 100])["final_average"]
    assert gap is not None
    assert alone is not None
    assert gap.low > 0
    assert gap.high - gap.low < alone.high - alone.low


def test_differences_change_sign_with_their_order() -> None:
    first, second = made([30, 20]), made([30, 20], level=0.3)
    for name, ends in difference_intervals(first, second).items():
        other = difference_intervals(second, first)[name]
        assert (ends is None) == (other is None)
        if ends is not None and other is not None:
            assert (ends.low, ends.high) == pytest.approx((-other.high, -other.low))


def test_invalid_input() -> None:
    with pytest.raises(SodapError, match="same test images"):
        difference_intervals(made([10, 10]), made([10, 11]))
    with pytest.raises(SodapError):
        difference_intervals([np.zeros((2, 0), bool)] * 2, [np.zeros((2, 0), bool)] * 2)
