"""How the pool grows with the drift score."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sodap.drift import DriftSettings, expansion, should_expand
from sodap.errors import SodapError

PAPER = DriftSettings(threshold=0.7)


@pytest.mark.parametrize(
    ("active", "score", "grown"),
    [
        (60, 2.0, 24),  # 60 -> 84, as reported
        (60, 2.083, 24),
        (24, 2.0, 10),  # 84 -> 94, as reported: the floor E_min
        (60, 0.0, 10),
        (60, 0.82, 10),
        (60, 5.0, 60),
        (60, 6.67, 80),
        (60, 1e9, 80),
        (0, 3.0, 10),
    ],
)
def test_growth_follows_the_paper(active: int, score: float, grown: int) -> None:
    assert expansion(active, score, PAPER) == grown


@given(active=st.integers(0, 500), a=st.floats(0, 1e6), b=st.floats(0, 1e6))
def test_growth_is_bounded_and_never_falls_with_the_score(active: int, a: float, b: float) -> None:
    low, high = sorted([a, b])
    assert 10 <= expansion(active, low, PAPER) <= expansion(active, high, PAPER) <= 80


@pytest.mark.parametrize(
    ("active", "score"), [(60, math.nan), (60, math.inf), (60, -1.0), (-1, 1.0)]
)
def test_what_is_no_score_is_refused(active: int, score: float) -> None:
    with pytest.raises(SodapError, match="drift score"):
        expansion(active, score, PAPER)


def test_the_threshold_is_enough() -> None:
    assert not should_expand(0.69, PAPER)
    assert should_expand(0.7, PAPER)
    assert should_expand(0.0, DriftSettings())
