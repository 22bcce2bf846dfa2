"""The fitted temperature against a general optimiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
from scipy.special import log_softmax  # type: ignore[import-untyped]
from torch import Tensor

from sodap.methods.parts.temperature import fit_sharpness


def data(count: int, spread: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(4, (count,), generator=generator)
    scores = spread * torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return scores + torch.nn.functional.one_hot(labels, 4), labels


@pytest.mark.parametrize(("count", "spread"), [(1, 0.1), (40, 0.1), (40, 0.5), (300, 2.0)])
def test_no_other_factor_is_more_likely(count: int, spread: float) -> None:
    scores, labels = data(count, spread)
    smoothing = 1 / (count + 2)
    target = (1 - smoothing) * np.eye(4)[labels.numpy()] + smoothing / 4

    def loss(exponent: float) -> float:
        return float(-(target * log_softmax(np.exp(exponent) * scores.numpy(), 1)).mean())

    oracle = minimize_scalar(loss, bounds=(-9, 9), method="bounded", options={"xatol": 1e-9})
    assert np.log(fit_sharpness(scores, labels)) == pytest.approx(oracle.x, abs=1e-4)


def test_what_is_impossible_plays_no_part() -> None:
    scores, labels = data(50, 0.5)
    wider = torch.cat([torch.full((50, 2), -torch.inf), scores], 1)
    assert fit_sharpness(wider, labels + 2) == pytest.approx(fit_sharpness(scores, labels))


def test_scores_that_are_always_right_give_a_finite_factor() -> None:
    labels = torch.arange(30) % 4
    scores = torch.nn.functional.one_hot(labels, 4).double()
    assert 3 < fit_sharpness(scores, labels) < 20
