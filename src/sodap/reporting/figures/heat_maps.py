"""Heat maps: numbers as colours, in two manners that a light and a dark page can bear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike, NDArray

from sodap.reporting.figures.svg import INK

MOST_WRITTEN = 150
"""With more cells, the digits would be too small to read: the table behind the figure has them."""


def number_grid(
    axes: Axes,
    values: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    low: float = 0.0,
    high: float = 1.0,
    digits: int = 2,
    written: bool = True,
    room: int = 60,
) -> None:
    """Cells `[R, C]` with their numbers; NaN stays clear. `room` is as for `name_cells`."""
    table = np.asarray(values, np.float64)
    place = np.clip((table - low) / ((high - low) or 1.0), 0, 1)
    colours = colormaps["cividis"](np.nan_to_num(place))
    colours[np.isnan(table), 3] = 0
    axes.imshow(colours, interpolation="none", aspect="auto")
    if written and table.size <= MOST_WRITTEN:
        dark = colours[..., :3] @ (0.299, 0.587, 0.114) < 0.46
        for (row, column), value in np.ndenumerate(table):
            if not np.isnan(value):
                ink = "white" if dark[row, column] else "black"
                text = f"{value:.{digits}f}" if digits else f"{value:.0f}"
                axes.text(column, row, text, ha="center", va="center", color=ink, size=8)
    name_cells(axes, rows, columns, room)


def veil(weights: NDArray[np.float64], colour: str, strongest: float) -> NDArray[np.float64]:
    """Weights `[R, C]` as one colour that is the more opaque the larger they are, `[R, C, 4]`.

    What is 0 is clear, so the same picture works on white and on black.
    """
    opacity = np.clip(weights / (strongest or 1.0), 0, 1) ** 0.6  # small weights can be seen, too
    return np.concatenate(
        [np.broadcast_to(to_rgb(colour), (*weights.shape, 3)), opacity[..., None]], axis=-1
    )


def name_cells(axes: Axes, rows: Sequence[str], columns: Sequence[str], room: int = 60) -> None:
    """Names of rows at the left, of columns on top, slanted if more than `room` letters wide."""
    slant = 40 if columns and max(map(len, columns)) * len(columns) > room else 0
    axes.set_xticks(
        range(len(columns)), labels=columns, rotation=slant, ha="left" if slant else "center"
    )
    axes.set_yticks(range(len(rows)), labels=rows)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, colors=INK)
    axes.spines[:].set_visible(False)
