"""Metrics of a run, against supplement C in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from sodap.errors import SodapError
from sodap.evaluation import (
    average_accuracy,
    average_forgetting,
    backward_transfer,
    final_average,
    summary,
)

Results = NDArray[np.float64]
RESULTS = st.tuples(st.integers(1, 6), st.integers(0, 3)).flatmap(
    lambda size: arrays.arrays(np.float64, (size[0], size[0] + size[1]), elements=st.floats(0, 1))
)
# Rows: after stage 1, 2, 3; columns: domains, the fourth never learned.
RUN = np.array([[0.9, 0.2, 0.3, 0.1], [0.7, 0.8, 0.4, 0.1], [0.8, 0.5, 0.6, 0.1]])


def test_metrics_by_hand() -> None:
    assert summary(RUN) == pytest.approx(
        {
            "average_accuracy": (0.9 + 1.5 / 2 + 1.9 / 3) / 3,
            "average_forgetting": (0.1 + 0.3) / 2,
            "final_average": 1.9 / 3,
            "backward_transfer": (-0.1 - 0.3) / 2,
        }
    )


@given(R=RESULTS)
def test_metrics_match_the_formulas_of_the_paper(R: Results) -> None:
    T = len(R)
    avg_acc = sum(sum(R[i - 1, j - 1] for j in range(1, i + 1)) / i for i in range(1, T + 1)) / T
    assert average_accuracy(R) == pytest.approx(avg_acc)
    assert final_average(R) == pytest.approx(sum(R[T - 1, j] for j in range(T)) / T)
    forgetting, transfer = average_forgetting(R), backward_transfer(R)
    if T == 1:
        assert forgetting is None
        assert transfer is None
        return
    drops = [max(R[i - 1, j - 1] for i in range(j, T + 1)) - R[T - 1, j - 1] for j in range(1, T)]
    assert forgetting == pytest.approx(sum(drops) / (T - 1))
    assert transfer == pytest.approx(sum(R[T - 1, j] - R[j, j] for j in range(T - 1)) / (T - 1))
    assert forgetting is not None
    assert transfer is not None
    assert forgetting >= 0
    assert -transfer <= forgetting + 1e-12


@given(R=RESULTS)
def test_domains_not_learned_yet_do_not_count(R: Results) -> None:
    unmeasured = R.copy()
    unmeasured[np.triu_indices(len(R), k=1, m=R.shape[1])] = np.nan
    assert summary(unmeasured) == summary(R)


@given(R=RESULTS.filter(lambda R: len(R) > 1))
def test_forgetting_is_minus_backward_transfer_if_no_domain_improves(R: Results) -> None:
    falling = -np.sort(-R, axis=0)
    assert average_forgetting(falling) == pytest.approx(-(backward_transfer(falling) or 0.0))
    rising = np.sort(R, axis=0)
    assert average_forgetting(rising) == 0
    assert (backward_transfer(rising) or 0.0) >= 0


def test_one_stage_has_no_forgetting() -> None:
    assert summary([[0.75, 0.1]]) == {
        "average_accuracy": 0.75,
        "average_forgetting": None,
        "final_average": 0.75,
        "backward_transfer": None,
    }


@pytest.mark.parametrize("shape", [(0, 3), (3,), (3, 2), (1, 2, 2)])
def test_invalid_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(SodapError, match="one row per finished stage"):
        summary(np.zeros(shape))


def test_missing_results() -> None:
    R = RUN.copy()
    R[2, 0] = np.nan
    with pytest.raises(SodapError, match="no result for a domain"):
        average_accuracy(R)
