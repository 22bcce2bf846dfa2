"""Numbers as readers see them."""

from __future__ import annotations

from sodap.evaluation import Interval
from sodap.reporting.lead import shown


def interval(ends: Interval | None) -> str:
    return "–" if ends is None else f"{shown(ends.low)} to {shown(ends.high)}"


def signed(value: float | None) -> str:
    """With its sign, for differences."""
    return "–" if value is None else f"{round(value, 3) + 0.0:+.3f}"


def bytes_in_words(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return plural(round(count), "byte")


def seconds_in_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def plural(count: int, one: str, many: str = "") -> str:
    """`1 domain`, `3 domains`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
