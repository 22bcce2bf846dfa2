"""Metrics of confusion matrices, against scikit-learn and in edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from sklearn import metrics

from sodap.errors import SodapError
from sodap.evaluation import (
    accuracy,
    confusion_matrix,
    macro_f1,
    quadratic_kappa,
    recall_per_class,
)

CLASSES = 4
ITEMS = st.lists(
    st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=40
)


@given(items=ITEMS)
@settings(max_examples=100)
def test_metrics_match_scikit_learn(items: list[tuple[int, int]]) -> None:
    labels, predictions = (list(column) for column in zip(*items, strict=True))
    confusion = confusion_matrix(labels, predictions, CLASSES)
    expected = metrics.confusion_matrix(labels, predictions, labels=range(CLASSES))
    np.testing.assert_array_equal(confusion, expected)
    assert accuracy(confusion) == pytest.approx(metrics.accuracy_score(labels, predictions))
    assert macro_f1(confusion) == pytest.approx(
        metrics.f1_score(labels, predictions, average="macro")
    )
    recall = metrics.recall_score(
        labels, predictions, labels=range(CLASSES), average=None, zero_division=np.nan
    )
    found = [np.nan if value is None else value for value in recall_per_class(confusion)]
    np.testing.assert_allclose(found, recall)  # takes NaN, here undefined, as equal to NaN
    if len({*labels, *predictions}) > 1:  # scikit-learn gives NaN otherwise
        kappa = metrics.cohen_kappa_score(
            labels, predictions, labels=range(CLASSES), weights="quadratic"
        )
        assert quadratic_kappa(confusion) == pytest.approx(kappa, abs=1e-12)


@given(
    confusion=st.integers(1, 5).flatmap(
        lambda n: arrays.arrays(np.int64, (n, n), elements=st.integers(0, 1000))
    )
)
@settings(max_examples=100)
def test_metrics_are_never_nan(confusion: NDArray[np.int64]) -> None:
    if not confusion.any():
        for metric in (accuracy, recall_per_class, macro_f1, quadratic_kappa):
            with pytest.raises(SodapError, match="no image was evaluated"):
                metric(confusion)
        return
    assert 0 <= accuracy(confusion) <= 1
    assert 0 <= macro_f1(confusion) <= 1
    assert quadratic_kappa(confusion) <= 1
    assert all(value is None or 0 <= value <= 1 for value in recall_per_class(confusion))


def test_tensors_arrays_and_lists_give_the_same_counts() -> None:
    labels, predictions = [0, 0, 1, 2], [0, 2, 1, 1]
    expected = [[1, 0, 1], [0, 1, 0], [0, 1, 0]]
    for convert in (list, np.array, torch.tensor, lambda values: np.array(values, np.uint8)):
        confusion = confusion_matrix(convert(labels), convert(predictions), 3)
        assert confusion.dtype == np.int64
        assert confusion.tolist() == expected
    assert confusion_matrix([], [], 2).tolist() == [[0, 0], [0, 0]]


def test_kappa_has_quadratic_weights_and_is_defined_for_one_class() -> None:
    assert quadratic_kappa(np.diag([5, 0, 0])) == 1.0
    assert quadratic_kappa(np.diag([5, 3, 1])) == 1.0
    assert quadratic_kappa(np.array([[3, 0], [2, 0]])) == 0.0  # always the same answer
    near, far = np.diag([5, 5, 5]), np.diag([5, 5, 5])
    near[0, 1] += 3
    far[0, 2] += 3
    assert quadratic_kappa(near) > quadratic_kappa(far)


def test_invalid_input() -> None:
    with pytest.raises(SodapError, match=r"0\.\.2, got 0\.\.3"):
        confusion_matrix([0, 3], [0, 1], 3)
    with pytest.raises(SodapError, match=r"-1\.\.1"):
        confusion_matrix([0, 1], [-1, 1], 3)
    with pytest.raises(SodapError, match="compare 2 labels with 1"):
        confusion_matrix([0, 1], [0], 3)
    with pytest.raises(SodapError, match="class indices"):
        confusion_matrix([0.5], [0.5], 3)
    with pytest.raises(SodapError, match="class indices"):
        confusion_matrix(torch.zeros(2, 2, dtype=torch.int64), [0, 1], 3)
    with pytest.raises(SodapError, match="square"):
        accuracy(np.ones((2, 3), dtype=np.int64))
