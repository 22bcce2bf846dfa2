"""Style shared by all figures: colours, fonts, axes, heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

INK = "#010101"
"""Colour of text and axes, almost black; on a page it is replaced by the colour of the text."""

COLOURS = ("#2f86d0", "#d9660a", "#1b9e77", "#b565a7", "#8172c8")
"""Distinct for colour-blind readers, and visible on white and on black."""
BLUE, ORANGE = COLOURS[:2]
GREY = "#6b7280"
MARKERS = "osD^v"

WIDTH = 5.2
"""Width of a figure in inches; text stays readable on a phone."""
MAX_WRITTEN = 150
"""Most cells of a heat map that show their numbers."""

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # the name of a domain may contain a dollar sign
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",  # text stays text: small files that can be searched and read aloud
}

styled = rc_context(STYLE)
"""Decorator of functions that draw a figure."""


def panels(
    count: int, columns: int, width: float, height: float, extra: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes in rows of `columns`, each `width` x `height` inches.

    The figure is at least `WIDTH` wide; `extra` inches of height are left for labels.
    """
    rows = -(-count // columns)
    figure = Figure(figsize=(max(WIDTH, width * columns), height * rows + extra))
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(count)]


def legend_above(figure: Figure, columns: int) -> None:
    """A legend of the first axes, with each label once."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=columns)


# ------------------------------------------------------------------ axes


def y_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at these values, in plain digits, with a thin line at each."""
    axes.yaxis.set_major_locator(FixedLocator(values))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", color=INK, alpha=0.15)


def round_values(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... from `low` to `high`; only powers of ten if there are many."""
    powers = range(-12, 8)
    fine = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [value for value in fine if low <= value <= high]
    return inside if len(inside) <= 6 else [10.0**n for n in powers if low <= 10.0**n <= high]


def few_values(low: float, high: float) -> list[float]:
    """`round_values`, or evenly spaced values if there would be fewer than three."""
    coarse = round_values(low, high)
    if len(coarse) > 2:
        return coarse
    return [float(n) for n in MaxNLocator(5).tick_values(low, high) if low <= n <= high]


def x_labels(
    axes: Axes, places: ArrayLike, labels: Sequence[str], *, slant: int, top: bool = True
) -> None:
    """Labels at `places`, rotated by `slant` degrees."""
    side = "center" if not slant else "left" if top else "right"
    axes.set_xticks(np.asarray(places), labels=labels, rotation=slant, ha=side)


def no_lines(axes: Axes) -> None:
    """Remove spines and tick marks, and put the labels of columns on top."""
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, colors=INK)
    axes.spines[:].set_visible(False)


# ------------------------------------------------------------------ heat maps


def name_axes(axes: Axes, rows: str = "", columns: str = "") -> None:
    """Say what the rows and the columns of a heat map are; the columns on top."""
    axes.set_ylabel(rows)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(columns)


def label_cells(axes: Axes, rows: Sequence[str], columns: Sequence[str], most: int = 60) -> None:
    """Label rows and columns; columns with more than `most` letters together are slanted."""
    slant = 40 if columns and max(map(len, columns)) * len(columns) > most else 0
    x_labels(axes, range(len(columns)), columns, slant=slant)
    axes.set_yticks(range(len(rows)), labels=rows)
    no_lines(axes)


def heat_map(
    axes: Axes, values: ArrayLike, rows: Sequence[str], columns: Sequence[str], most: int = 60
) -> None:
    """Values `[R, C]` from 0 to 1 as colours and numbers; NaN stays clear."""
    table = np.asarray(values, np.float64)
    colours = colormaps["cividis"](np.nan_to_num(np.clip(table, 0, 1)))
    colours[np.isnan(table), 3] = 0
    axes.imshow(colours, interpolation="none", aspect="auto")
    if table.size <= MAX_WRITTEN:
        for (row, column), value in np.ndenumerate(table):
            if not np.isnan(value):
                ink = text_colour(colours[row, column])
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink, size=8)
    label_cells(axes, rows, columns, most)


def text_colour(background: NDArray[np.float64]) -> str:
    """Black or white, whichever is readable on `background` (RGBA)."""
    return "black" if float(background[:3] @ (0.299, 0.587, 0.114)) >= 0.46 else "white"


def tint(weights: NDArray[np.float64], colour: str, strongest: float) -> NDArray[np.float64]:
    """Weights `[R, C]` as the opacity of one colour, `[R, C, 4]`; 0 is clear.

    A clear background works on light and dark pages.
    """
    opacity = np.clip(weights / (strongest or 1.0), 0, 1) ** 0.6  # makes small weights visible
    return np.concatenate(
        [np.broadcast_to(to_rgb(colour), (*weights.shape, 3)), opacity[..., None]], axis=-1
    )
