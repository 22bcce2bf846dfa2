"""The tail of a weighted sum of χ² variables, against exact distributions and an integral."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, stats  # type: ignore[import-untyped]

from sodap.drift.weighted_chi2 import weighted_chi2_quantile, weighted_chi2_sf
from sodap.errors import SodapError


@pytest.mark.parametrize("count", [1, 2, 5, 50, 256])
@pytest.mark.parametrize("times_mean", [0.3, 0.9, 0.9999, 1.0, 1.0001, 1.5, 3.0])
def test_equal_weights_give_a_chi2_distribution(count: int, times_mean: float) -> None:
    exact = float(stats.chi2.sf(times_mean * count, count))
    found = weighted_chi2_sf(7 * times_mean * count, np.full(count, 7.0))
    assert found == pytest.approx(exact, rel=0.05 if count == 1 else 0.03 if count < 5 else 0.01)


def imhof(value: float, weights: NDArray[np.float64]) -> float:
    """P(Σ w χ² > value) by inverting the characteristic function (Imhof 1961)."""

    def integrand(u: float) -> float:
        angle = 0.5 * float(np.arctan(weights * u).sum()) - 0.5 * value * u
        return math.sin(angle) / (u * math.exp(0.25 * float(np.log1p((weights * u) ** 2).sum())))

    return 0.5 + float(integrate.quad(integrand, 1e-12, 60, limit=2000)[0]) / math.pi


@pytest.mark.parametrize("decay", [0.5, 0.8, 0.97])
@pytest.mark.parametrize("times_mean", [0.5, 1.0, 2.0, 3.0])
def test_unequal_weights_agree_with_the_inverted_characteristic_function(
    decay: float, times_mean: float
) -> None:
    weights = np.power(decay, np.arange(40), dtype=np.float64)
    value = times_mean * float(weights.sum())
    assert weighted_chi2_sf(value, weights) == pytest.approx(imhof(value, weights), rel=0.05)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.floats(1e-6, 10), min_size=2, max_size=30),
    times=st.floats(0.05, 6),
    scale=st.floats(1e-6, 1e6),
    tail=st.floats(1e-6, 0.9),
)
def test_it_falls_with_the_value_and_has_no_unit(
    weights: list[float], times: float, scale: float, tail: float
) -> None:
    w = np.array(weights)
    value = times * float(w.sum())
    p = weighted_chi2_sf(value, w)
    assert 0 <= p <= 1
    assert weighted_chi2_sf(value * 1.3, w) <= p
    assert weighted_chi2_sf(value * scale, w * scale) == pytest.approx(p, rel=1e-6, abs=1e-12)
    assert weighted_chi2_sf(weighted_chi2_quantile(tail, w), w) == pytest.approx(tail, rel=0.01)


def test_no_weight_and_bad_weights() -> None:
    assert weighted_chi2_sf(1.0, np.zeros(3)) == 0.0
    assert weighted_chi2_sf(0.0, np.ones(3)) == 1.0
    for bad in (np.array([1.0, -1.0]), np.array([math.nan])):
        with pytest.raises(SodapError):
            weighted_chi2_sf(1.0, bad)
