"""Numbers beside an axis: few, round, and in plain digits."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from sodap.reporting.figures.svg import INK


def ticks(axes: Axes, numbers: Sequence[float]) -> None:
    """These numbers, in plain digits, and a thin line at each."""
    axes.yaxis.set_major_locator(FixedLocator(numbers))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", color=INK, alpha=0.15)


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... from `low` to `high`; powers of ten alone where these would be many."""
    powers = range(-12, 8)
    fine = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [number for number in fine if low <= number <= high]
    return inside if len(inside) <= 6 else [10.0**n for n in powers if low <= 10.0**n <= high]


def few_numbers(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, at equal distances where 1, 2, 5 would be too coarse."""
    coarse = round_numbers(low, high)
    if len(coarse) > 2:
        return coarse
    return [float(n) for n in MaxNLocator(5).tick_values(low, high) if low <= n <= high]
