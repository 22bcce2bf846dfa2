"""Scores of single answers, drawn units, and AvgF by chance, against slow and exact oracles."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    recall_score,
)

from sodap.errors import SodapError
from sodap.evaluation import (
    DomainAnswers,
    bootstrap_difference,
    forgetting_by_chance,
    mixtures,
    paired_difference,
    resampled,
    scores,
    summary,
)
from sodap.evaluation.answers import UnitSums

CLASSES = 3


def some_answers(seed: int, sizes: tuple[int, ...] = (23, 31), share: float = 0.7) -> Any:
    """Answers that are right with probability `share`; about two images a unit."""
    rng = np.random.default_rng(seed)
    found = []
    for size in sizes:
        labels = np.random.default_rng(size).integers(CLASSES, size=size)
        units = np.random.default_rng(size + 1).integers(size // 2, size=size)
        known = rng.random((len(sizes), size)) < share
        guess = rng.integers(CLASSES, size=known.shape)
        found.append(DomainAnswers(labels, units, np.where(known, labels, guess)))
    return found


@given(st.integers(0, 10**6))
@settings(max_examples=25)
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    domains = some_answers(seed)
    R = [[accuracy_score(d.labels, d.answers[t]) for d in domains] for t in range(2)]
    pairs = [(d.labels, d.answers[-1]) for d in domains]
    balanced = np.mean([balanced_accuracy_score(*pair) for pair in pairs])
    f1 = np.mean([f1_score(*pair, average="macro") for pair in pairs])
    labels, last = (np.concatenate(each) for each in zip(*pairs, strict=True))
    rarest = int(np.bincount(labels).argmin())
    recall = recall_score(labels, last, labels=[rarest], average="macro")
    found = scores(domains, CLASSES)
    expected = summary(R) | {"balanced_accuracy": balanced, "macro_f1": f1, "rarest_recall": recall}
    assert found == pytest.approx(expected)


def test_a_drawn_unit_counts_as_often_as_it_is_drawn() -> None:
    domains = some_answers(1)
    sums = UnitSums(domains, CLASSES)
    units = np.unique(np.concatenate([d.units for d in domains]))
    times = np.random.default_rng(0).integers(1, 4, len(units))
    repeated = []
    for each in domains:
        index = np.repeat(np.arange(len(each.labels)), times[np.searchsorted(units, each.units)])
        repeated.append(
            DomainAnswers(each.labels[index], each.units[index], each.answers[:, index])
        )
    found = sums.scores(times[None].astype(np.float32))
    assert {name: value[0] for name, value in found.items()} == pytest.approx(
        scores(repeated, CLASSES)
    )


def test_draws_are_of_units_within_their_domains() -> None:
    """If the images of a unit agree, accuracy varies as the mean of units does."""
    units = np.repeat(np.arange(40), 5)
    outcomes = (np.arange(40) % 4 > 0).astype(np.int64)
    one = DomainAnswers(np.ones(200, np.int64), units, outcomes[units][None])
    found = resampled({"a": [one]}, 2, draws=4000)["a"]["average_accuracy"]
    assert found[0] == 0.75
    assert found[1:].std() == pytest.approx((0.75 * 0.25 / 40) ** 0.5, rel=0.06)
    assert found[1:].mean() == pytest.approx(0.75, abs=0.005)


def test_only_the_same_images_are_compared() -> None:
    with pytest.raises(SodapError, match="same test images"):
        resampled({0: some_answers(0), 1: some_answers(0, (23, 30))}, CLASSES)


def test_noise_from_seeds_alone_gives_students_interval() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 4))
    drawn = [np.repeat(each[:, None], 60_001, axis=1) for each in (first, second)]
    found, expected = bootstrap_difference(drawn[0], drawn[1]), paired_difference(first, second)
    assert found.mean == pytest.approx(expected.mean)
    assert expected.low is not None
    assert found.low == pytest.approx(expected.low, rel=0.05)
    assert expected.p is not None
    assert found.p == pytest.approx(expected.p, abs=0.01)
    few = bootstrap_difference(drawn[0][:2], drawn[1][:2])
    assert (few.low, few.p, few.significant) == (None, None, False)


@pytest.mark.parametrize(("seed_noise", "folds"), [(0.0, 1), (0.06, 1), (0.1, 4)])
def test_equal_methods_differ_in_one_of_twenty_simulations(seed_noise: float, folds: int) -> None:
    """Two methods of equal accuracy, on patients with one to three images, with three seeds."""
    rng, false = np.random.default_rng(0), 0
    trials = 300
    for _ in range(trials):
        units = np.repeat(np.arange(60), rng.integers(1, 4, 60))
        fold_of = units % folds
        runs: dict[tuple[int, int], Any] = {}
        for method in range(2):
            hard = rng.normal(size=60)[units]  # a patient is easy or hard for a method
            for seed in range(3):
                level = (seed_noise * rng.normal(size=folds))[fold_of]  # each fold is a run
                right = 0.7 * hard + 0.7 * rng.normal(size=len(units)) < 3 * level
                answers = right[None].astype(int)
                labels = np.ones(len(units), np.int64)
                runs[method, seed] = [DomainAnswers(labels, units, answers, fold_of)]
        drawn = resampled(runs, 2, draws=300)
        both = [
            np.stack([drawn[method, seed]["average_accuracy"] for seed in range(3)])
            for method in range(2)
        ]
        one, other = (
            mixtures([runs[method, seed] for seed in range(3)], 2)["average_accuracy"]
            for method in range(2)
        )
        false += bootstrap_difference(both[0], both[1], mixed=one - other, folds=folds).significant
    interval = binomtest(false, trials).proportion_ci(0.999)
    assert interval.low <= 0.05, "too many differences are found"
    assert interval.high >= 0.02, "intervals are much too wide"


def test_mixtures_take_each_fold_from_one_seed() -> None:
    labels = np.ones(6, np.int64)
    fold_of = np.array([0, 0, 0, 1, 1, 1])
    runs = [
        [DomainAnswers(labels, np.arange(6), np.array([right]), fold_of)]
        for right in ([1, 1, 1, 0, 0, 1], [0, 0, 1, 1, 1, 0])
    ]
    found = mixtures(runs, 2)["average_accuracy"]
    assert sorted(found * 6) == pytest.approx([2, 3, 4, 5])  # 1 + 1, 1 + 2, 3 + 1, 3 + 2


def test_mixtures_of_a_single_fold_are_the_runs() -> None:
    runs = [some_answers(seed) for seed in range(4)]
    found = mixtures(runs, CLASSES)
    for name, values in found.items():
        assert values.tolist() == pytest.approx([scores(run, CLASSES)[name] for run in runs])


def test_forgetting_by_chance_is_the_mean_over_all_orders() -> None:
    """Three units, all 6 * 6 * 6 orders of three stages in domain 1, and 2 * 2 * 2 in domain 2."""
    right = np.array([[1, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0]])
    units = np.array([0, 1, 2, 2])
    domain = DomainAnswers(np.ones(4, np.int64), units, right)
    expected = []
    for start in (0, 1):
        sums = np.stack([right[start:, units == unit].sum(1) for unit in range(3)])
        orders = product(permutations(range(3 - start)), repeat=3)
        lost = []
        for order in orders:
            total = sum(sums[unit][list(each)] for unit, each in enumerate(order)) / 4
            lost.append(total.max() - total[-1])
        expected.append(np.mean(lost))
    found = forgetting_by_chance([domain] * 3, orders=40_000)
    assert found == pytest.approx(np.mean(expected), rel=0.02)
    assert forgetting_by_chance([DomainAnswers(units, units, units[None])]) is None


def test_without_forgetting_avgf_is_its_value_by_chance() -> None:
    """Test sets of 197, 51 and 27 images, a tenth to a fifth of the answers change."""
    rng = np.random.default_rng(0)
    observed, expected = [], []
    for _ in range(150):
        domains = []
        for size in (197, 51, 27):
            chance = np.where(rng.random(size) < 0.7, 0.92, 0.2)  # easy and hard images
            right = (rng.random((3, size)) < chance).astype(np.int64)
            domains.append(DomainAnswers(np.ones(size, np.int64), np.arange(size), right))
        found = scores(domains, 2)["average_forgetting"]
        observed.append(found)
        expected.append(forgetting_by_chance(domains, orders=50) or 0.0)
    gap = np.subtract(observed, expected)
    assert abs(gap.mean()) < 3.5 * gap.std() / len(gap) ** 0.5
    assert 0.005 < np.mean(expected) < 0.03


def test_a_method_that_forgets_is_above_chance() -> None:
    right = np.ones((2, 100), np.int64)
    right[1, :30] = 0
    domain = DomainAnswers(np.ones(100, np.int64), np.arange(100), right)
    chance = forgetting_by_chance([domain, domain])
    assert chance is not None
    assert chance < 0.05 < scores([domain, domain], 2)["average_forgetting"] == pytest.approx(0.3)
