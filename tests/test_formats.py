"""Numbers as readers see them."""

from __future__ import annotations

import pytest

from sodap.formats import (
    format_bytes,
    format_count,
    format_difference,
    format_duration,
    format_score,
    plural,
)


@pytest.mark.parametrize(
    ("value", "plain", "signed"),
    [(0.12345, "0.123", "+0.123"), (-0.0004, "0.000", "+0.000"), (None, "–", "–")],
)  # fmt: skip
def test_scores(value: float | None, plain: str, signed: str) -> None:
    assert format_score(value) == plain
    assert format_difference(value) == signed


def test_a_difference_has_its_interval() -> None:
    assert format_difference(0.01, -0.0201, 0.04) == "+0.010 (-0.020, +0.040)"
    assert format_difference(0.01, None, None) == "+0.010"


@pytest.mark.parametrize(
    ("count", "in_bytes", "short"),
    [(0, "0 B", "0"), (999, "999 B", "999"), (1000, "1 kB", "1k"), (1536, "1.54 kB", "1.54k"),
     (999_700, "1 MB", "1M"), (20_000_000, "20 MB", "20M"), (3.21e9, "3.21 GB", "3.21G")],
)  # fmt: skip
def test_sizes(count: float, in_bytes: str, short: str) -> None:
    assert format_bytes(count) == in_bytes
    assert format_count(count) == short


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (3.21, "3.2 s"), (48.4, "48 s"), (119, "119 s"), (120, "2.0 min"),
     (5400, "90.0 min"), (7200, "2.0 h"), (90_000, "25.0 h")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts_agree_with_their_noun() -> None:
    assert plural(1, "class", "classes") == "1 class"
    assert plural(0, "class", "classes") == "0 classes"
    assert plural(12_000, "image") == "12,000 images"
