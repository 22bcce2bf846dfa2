"""Ridge regression by evidence: against brute force, scikit-learn and fits without one image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import helmert  # type: ignore[import-untyped]
from sklearn.linear_model import Ridge as OracleRidge
from torch import Tensor

from sodap.methods.parts.evidence import CentredMoments, solve_by_evidence
from sodap.methods.parts.second_moments import SecondMoments, with_constant

CLASSES = 3


def data(count: int, width: int, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Features in float64 that depend on the class, far from the origin."""
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    centres = torch.randn(CLASSES, width, generator=generator, dtype=torch.float64)
    drawn = torch.randn(count, width, generator=generator, dtype=torch.float64)
    return 4 + centres[labels] + noise * drawn, labels


def sums_of(features: Tensor, labels: Tensor) -> SecondMoments:
    sums = SecondMoments(CLASSES, features.shape[1])
    sums.update(features, labels)
    return sums


def brute_force(features: Tensor, labels: Tensor, penalty: float) -> float:
    """log p(y | x) of y = w x + b + noise with w ~ N(0, noise / penalty), without the sums.

    Contrasts (Helmert) take the intercept out; the variance of the noise is the most likely one.
    """
    contrasts = helmert(len(labels))
    x = contrasts @ features.numpy()
    covariance = np.eye(len(x)) + x @ x.T / penalty
    total = 0.0
    for target in np.eye(CLASSES)[labels.numpy()].T:
        y = contrasts @ target
        energy = y @ np.linalg.solve(covariance, y)
        total += -len(y) / 2 * np.log(energy) - np.linalg.slogdet(covariance)[1] / 2
    return float(total)


@pytest.mark.parametrize(("count", "width"), [(40, 5), (12, 30)])
def test_the_evidence_is_the_marginal_likelihood(count: int, width: int) -> None:
    features, labels = data(count, width)
    centred = CentredMoments.of(sums_of(features, labels))
    unit = float((features - features.mean(0)).square().sum(0).mean())
    assert float(centred.energy) == pytest.approx(unit)
    found = [centred.evidence(penalty) for penalty in (1e-3, 0.1, 10.0)]
    expected = [brute_force(features, labels, unit * penalty) for penalty in (1e-3, 0.1, 10.0)]
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-6)


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_the_penalty_is_the_most_probable_one(noise: float) -> None:
    features, labels = data(60, 8, noise)
    centred = CentredMoments.of(sums_of(features, labels))
    grid = np.linspace(-6, 3, 181)
    best = grid[np.argmax([centred.evidence(10.0**each) for each in grid])]
    found = np.log10(solve_by_evidence(sums_of(features, labels)).penalty)
    assert abs(found - best) <= 0.2


def test_the_head_is_ridge_regression_without_a_penalty_on_the_intercept() -> None:
    features, labels = data(60, 7)
    solved = solve_by_evidence(sums_of(features, labels))
    unit = float((features - features.mean(0)).square().sum(0).mean())
    oracle = OracleRidge(alpha=solved.penalty * unit, solver="cholesky", tol=1e-12)
    oracle.fit(features.numpy(), np.eye(CLASSES)[labels.numpy()])
    np.testing.assert_allclose(solved.head[:-1].T, oracle.coef_, atol=1e-9)
    np.testing.assert_allclose(solved.head[-1], oracle.intercept_, atol=1e-9)


@pytest.mark.parametrize(("count", "width"), [(30, 5), (12, 20)])
def test_leave_one_out_scores_are_those_of_a_fit_without_the_image(count: int, width: int) -> None:
    features, labels = data(count, width)
    solved = CentredMoments.of(sums_of(features, labels)).solve(0.3)
    found = solved.leave_one_out(features, labels)
    unit = float((features - features.mean(0)).square().sum(0).mean())
    target = np.eye(CLASSES)[labels.numpy()]
    for image in range(0, count, 5):
        others = np.arange(count) != image
        oracle = OracleRidge(alpha=0.3 * unit, solver="cholesky", tol=1e-12)
        oracle.fit(features.numpy()[others], target[others])
        expected = oracle.predict(features.numpy()[image : image + 1])[0]
        np.testing.assert_allclose(found[image], expected, atol=1e-8)


@pytest.mark.parametrize("labels", [[1], [2, 2, 2, 2], []])
def test_too_few_images_for_a_regression(labels: list[int]) -> None:
    features, given = data(30, 5)[0][: len(labels)], torch.tensor(labels, dtype=torch.int64)
    solved = solve_by_evidence(sums_of(features, given))
    frequent = torch.bincount(given, minlength=CLASSES) / max(len(labels), 1)
    scores = with_constant(torch.ones(1, 5, dtype=torch.float64)) @ solved.head
    torch.testing.assert_close(scores[0], frequent.double())
    assert solved.leave_one_out(features, given).isfinite().all()
