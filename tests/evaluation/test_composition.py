"""Effects of representation and head, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sodap.errors import SodapError
from sodap.evaluation import average_forgetting, effects, mean_effects


@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 10_000))
def test_effects_follow_their_definition(stages: int, unseen: int, seed: int) -> None:
    A = np.random.default_rng(seed).random((stages, stages, stages + unseen))
    found = effects(A.tolist())
    assert [each.domain for each in found] == list(range(stages - 1))
    T = stages - 1
    for d, each in enumerate(found):
        own = A[d][d][d]
        assert each.then == own
        assert each.representation == A[T][d][d] - own
        assert each.classifier == A[d][T][d] - own
        assert each.both == A[T][T][d] - own
        left = each.both - each.representation - each.classifier
        assert each.interaction == pytest.approx(left, abs=1e-15)


def test_both_is_average_forgetting() -> None:
    """If no domain improves after its own stage, -both is AvgF."""
    R = np.array([[0.9, 0.2, 0.1], [0.8, 0.9, 0.3], [0.6, 0.7, 0.9]])
    A = np.zeros((3, 3, 3))
    for stage in range(3):
        A[stage, stage] = R[stage]
    mean = mean_effects(effects(A))
    assert mean is not None
    assert -mean["both"] == pytest.approx(average_forgetting(R))


def test_one_stage_has_no_effects() -> None:
    assert effects(np.ones((1, 1, 1))) == []
    assert mean_effects([]) is None


@pytest.mark.parametrize("shape", [(2, 2), (2, 3, 3), (3, 3, 2)])
def test_invalid_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(SodapError):
        effects(np.zeros(shape))
