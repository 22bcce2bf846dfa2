"""One pass in batches must give what two passes over all features give, in any order."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from sodap.errors import SodapError
from sodap.preserving import ClassStatistics

CLASSES, WIDTH = 4, 3
Moments = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def features_and_labels(seed: int, items: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES - 1, (items,), generator=generator)  # the last class never comes
    features = torch.randn(items, WIDTH, generator=generator, dtype=torch.float64)
    return features * 0.7 + labels[:, None] + 2.0, labels


def learned(*batches: tuple[Tensor, Tensor]) -> ClassStatistics:
    statistics = ClassStatistics(CLASSES, WIDTH)
    for features, labels in batches:
        statistics.update(features, labels)
    return statistics


def two_pass(features: Tensor, labels: Tensor) -> Moments:
    count, mean, squares = np.zeros(CLASSES), np.zeros((CLASSES, WIDTH)), np.zeros((CLASSES, WIDTH))
    for c in range(CLASSES):
        members = features.double().numpy()[labels.numpy() == c]
        if len(members):
            count[c], mean[c] = len(members), members.mean(axis=0)
            squares[c] = ((members - mean[c]) ** 2).sum(axis=0)
    return count, mean, squares


def welford(features: Tensor, labels: Tensor) -> Moments:
    """The paper's update, one sample at a time."""
    n, mean, Q = np.zeros(CLASSES), np.zeros((CLASSES, WIDTH)), np.zeros((CLASSES, WIDTH))
    for f, c in zip(features.double().numpy(), labels.tolist(), strict=True):
        n[c] += 1
        delta = f - mean[c]
        mean[c] += delta / n[c]
        Q[c] += delta * (f - mean[c])
    return n, mean, Q


def assert_same(statistics: ClassStatistics, expected: Moments, rtol: float = 1e-12) -> None:
    found = (statistics.count, statistics.mean, statistics.squares)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, rtol=rtol, atol=1e-12)


def moments(statistics: ClassStatistics) -> Moments:
    return statistics.count.numpy(), statistics.mean.numpy(), statistics.squares.numpy()


@pytest.mark.parametrize("batch", [1, 7, 64, 500])
def test_batches_give_the_moments_of_two_passes_and_of_welford(batch: int) -> None:
    features, labels = features_and_labels(0, 500)
    batches = zip(torch.split(features, batch), torch.split(labels, batch), strict=True)
    statistics = learned(*batches)
    assert_same(statistics, two_pass(features, labels))
    assert_same(statistics, welford(features, labels))


@given(
    seed=st.integers(0, 2**20), items=st.integers(0, 40), cut=st.integers(0, 40), parts=st.data()
)
@settings(max_examples=60)
def test_neither_order_nor_batching_leaves_a_trace(
    seed: int, items: int, cut: int, parts: st.DataObject
) -> None:
    features, labels = features_and_labels(seed, items)
    order = torch.tensor(parts.draw(st.permutations(range(items))), dtype=torch.int64)
    cut = min(cut, items)
    pieces = [
        (features[order[:cut]], labels[order[:cut]]),
        (features[order[cut:]], labels[order[cut:]]),
    ]
    whole = learned((features, labels))
    assert_same(learned(*pieces), moments(whole))

    merged = learned(pieces[0])
    merged.merge(learned(pieces[1]))
    assert_same(merged, moments(whole))


@given(seed=st.integers(0, 2**20), sizes=st.tuples(*[st.integers(0, 20)] * 3))
@settings(max_examples=60)
def test_merging_is_associative(seed: int, sizes: tuple[int, int, int]) -> None:
    a, b, c = (learned(features_and_labels(seed + i, size)) for i, size in enumerate(sizes))
    left = copy.deepcopy(a)
    left.merge(b)
    left.merge(c)
    bc = copy.deepcopy(b)
    bc.merge(c)
    right = copy.deepcopy(a)
    right.merge(bc)
    assert_same(left, moments(right))


def test_the_mean_may_be_far_from_zero() -> None:
    features, labels = features_and_labels(3, 400)
    shifted = features + 1e6  # Q as Σf² - n·mu² would keep no more than three digits here
    near, far = learned((features, labels)), ClassStatistics(CLASSES, WIDTH)
    for batch in zip(torch.split(shifted, 16), torch.split(labels, 16), strict=True):
        far.update(*batch)
    np.testing.assert_allclose(far.variance.numpy(), near.variance.numpy(), rtol=1e-7)


def test_variance_is_unbiased_and_zero_where_it_is_not_defined() -> None:
    features = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 7.0], [5.0, 5.0, 5.0]])
    statistics = learned((features, torch.tensor([0, 0, 2])))
    assert statistics.variance[0].tolist() == [2.0, 0.0, 8.0]
    assert statistics.variance[1:].eq(0).all()
    assert statistics.observed.tolist() == [True, False, True, False]
    assert statistics.mean[2].tolist() == [5.0, 5.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_casting_a_model_leaves_the_statistics_exact(dtype: torch.dtype) -> None:
    statistics = learned(features_and_labels(1, 50))
    before = {name: value.clone() for name, value in statistics.state_dict().items()}
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), statistics).to(dtype)
    assert next(model.parameters()).dtype == dtype
    for name, value in statistics.state_dict().items():
        assert value.dtype == torch.float64
        assert value.equal(before[name])
    assert statistics.half().to("meta").mean.is_meta  # a device is followed all the same


def test_features_of_low_precision_are_summed_in_float64() -> None:
    features, labels = features_and_labels(2, 300)
    features = features.bfloat16().requires_grad_()
    statistics = learned((features, labels))
    assert_same(statistics, two_pass(features.detach(), labels))
    assert not statistics.mean.requires_grad


def test_the_state_survives_a_round_trip() -> None:
    statistics, other = learned(features_and_labels(5, 60)), ClassStatistics(CLASSES, WIDTH)
    other.load_state_dict(statistics.state_dict())
    assert_same(other, moments(statistics), rtol=0)


def test_wrong_shapes_are_named() -> None:
    statistics = ClassStatistics(CLASSES, WIDTH)
    with pytest.raises(SodapError, match=r"\[B, 3\]"):
        statistics.update(torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(SodapError, match="labels"):
        statistics.update(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(SodapError, match="merged"):
        statistics.merge(ClassStatistics(CLASSES, WIDTH + 1))
