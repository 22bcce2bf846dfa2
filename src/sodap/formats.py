"""Scores, sizes, durations and counts as readers see them, on pages and on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

MISSING = "–"
"""Placeholder for a number that is not defined, such as forgetting after one stage."""


def format_score(value: float | None) -> str:
    """A score with three digits."""
    return MISSING if value is None else f"{round(value, 3) + 0.0:.3f}"  # + 0.0: never -0.000


def format_difference(
    value: float | None, low: float | None = None, high: float | None = None
) -> str:
    """A difference of scores with its sign and, if there is one, its interval."""
    if value is None:
        return MISSING
    if low is None or high is None:
        return f"{round(value, 3) + 0.0:+.3f}"
    return f"{format_difference(value)} ({format_difference(low)}, {format_difference(high)})"


def format_bytes(count: float) -> str:
    """Format a size in bytes with three digits and decimal units: `512 B`, `1.5 kB`, `20 MB`."""
    return _with_unit(count, (" GB", " MB", " kB"), " B")


def format_count(count: float) -> str:
    """Format a large number with three digits: `512`, `1.5k`, `20M`."""
    return _with_unit(count, ("G", "M", "k"), "")


def format_duration(seconds: float) -> str:
    """Format seconds in a readable unit: `3.2 s`, `48 s`, `5.0 min`, `2.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def plural(count: int, one: str, many: str = "") -> str:
    """Count things in words: `1 domain`, `3 domains`; `many` is for nouns that take no `s`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def first_few(names: Sequence[str], most: int = 4) -> str:
    """List names, of many only the first ones: `a, b, c`, `a, b, c, d and 6 more`."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _with_unit(value: float, units: tuple[str, str, str], bare: str) -> str:
    value = float(f"{value:.3g}") if value >= 1000 else value  # 999,700 is 1M, not 1000k
    for unit, size in zip(units, (1e9, 1e6, 1e3), strict=True):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}{bare}"
