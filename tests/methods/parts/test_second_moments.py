"""Ridge regression from sums, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as OracleRidge

from sodap.methods.parts.second_moments import SecondMoments, with_constant


def data(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 7, generator=generator, dtype=torch.float64)
    return features, torch.arange(count) % 3


def summed(features: torch.Tensor, labels: torch.Tensor, *, parts: int = 1) -> SecondMoments:
    statistics = SecondMoments(3, 7)
    for rows in torch.arange(len(labels)).chunk(parts):
        statistics.update(features[rows], labels[rows])
    return statistics


@pytest.mark.parametrize("penalty", [1e-4, 0.1, 3.0])
def test_the_solution_is_ridge_regression(penalty: float) -> None:
    features, labels = data(60)
    statistics = summed(features, labels, parts=4)
    energy = float(features.square().sum(0).mean())
    oracle = OracleRidge(alpha=penalty * energy, solver="cholesky", tol=1e-12)
    oracle.fit(features.numpy(), np.eye(3)[labels.numpy()])
    found = statistics.solve(penalty)
    np.testing.assert_allclose(found[:-1].T, oracle.coef_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found[-1], oracle.intercept_, rtol=0, atol=1e-8)


@given(st.permutations(range(24)), st.integers(1, 24))
@settings(max_examples=25)
def test_neither_order_nor_batches_matter(order: list[int], parts: int) -> None:
    features, labels = data(24)
    whole = summed(features, labels)
    shuffled = summed(features[order], labels[order], parts=parts)
    torch.testing.assert_close(shuffled.solve(0.1), whole.solve(0.1), rtol=0, atol=1e-8)


def test_the_error_follows_from_the_sums() -> None:
    features, labels = data(30)
    head = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    target = torch.nn.functional.one_hot(labels, 3).double()
    expected = (with_constant(features) @ head - target).square().sum()
    torch.testing.assert_close(summed(features, labels).error(head), expected)


def test_sums_keep_their_precision_and_no_images_give_a_zero_head() -> None:
    assert SecondMoments(3, 7).half().gram.dtype == torch.float64
    assert torch.equal(SecondMoments(3, 7).solve(0.1), torch.zeros(8, 3, dtype=torch.float64))
