"""Reliability against a naive count and against torchmetrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from sodap.errors import SodapError
from sodap.evaluation import reliability

answers = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


@given(answers, st.integers(1, 20))
def test_bins_match_a_naive_count(pairs: list[tuple[float, bool]], bins: int) -> None:
    found = reliability([c for c, _ in pairs], [r for _, r in pairs], bins)
    error = 0.0
    for place in range(bins):
        inside = [
            (c, r)
            for c, r in pairs
            if (c * bins > place or place == 0) and (c * bins <= place + 1 or place == bins - 1)
        ]
        assert found.counts[place] == len(inside)
        if inside:
            sure = sum(c for c, _ in inside) / len(inside)
            hit = sum(r for _, r in inside) / len(inside)
            assert found.confidence[place] == pytest.approx(sure)
            assert found.accuracy[place] == pytest.approx(hit)
            error += len(inside) / len(pairs) * abs(sure - hit)
    assert found.error == pytest.approx(error, abs=1e-12)
    gap = np.mean([c for c, _ in pairs]) - np.mean([r for _, r in pairs])
    assert found.overconfidence == pytest.approx(gap, abs=1e-12)


def test_error_matches_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(3)
    probabilities = torch.randn(500, 4, generator=generator).mul(2).softmax(-1)
    labels = torch.randint(4, (500,), generator=generator)
    sure, answer = probabilities.max(-1)
    theirs = multiclass_calibration_error(probabilities, labels, num_classes=4, n_bins=15)
    ours = reliability(sure.numpy(), (answer == labels).numpy()).error
    assert ours == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize(
    ("confidence", "right"), [([], []), ([0.5], [True, False]), ([1.5], [True]), ([-0.1], [True])]
)
def test_invalid_input(confidence: list[float], right: list[bool]) -> None:
    with pytest.raises(SodapError):
        reliability(confidence, right)
