"""Titles of panels that stay apart and inside of the figure, however long a domain's name is."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

POINTS = 72  # an inch
AIR = 3  # points on each side; words are not equally wide in every format


def fit_titles(figure: Figure) -> None:
    """Shorten what does not fit; the figure must be laid out, for layouts ignore such widths."""
    titled = [axes for axes in figure.axes if axes.get_title()]
    for axes in titled:
        points = _room(axes, titled) * figure.get_figwidth() * POINTS - 2 * AIR
        lines = axes.get_title().split("\n")
        font = axes.title.get_fontproperties()
        axes.title.set_text("\n".join(shortened(line, points, font) for line in lines))


def shortened(line: str, points: float, font: FontProperties) -> str:
    """The line without its middle if it is too long: names often differ at one of their ends."""
    if _width(line, font) <= points:
        return line
    for left in range(len(line) - 1, 1, -1):
        head, tail = line[: (left + 1) // 2], line[-(left // 2) :]
        if _width(f"{head}…{tail}", font) <= points:
            return f"{head}…{tail}"
    return "…"


def _room(axes: Axes, titled: list[Axes]) -> float:
    """How wide a title may be, as a share of the figure: it ends halfway to the next panel.

    All rows have the columns of the fullest: one panel alone would reach the label at the edge.
    """
    own = axes.get_position()
    left, right = 0.0, 1.0
    for other in (each.get_position() for each in titled):
        if other.x1 <= own.x0:
            left = max(left, (other.x1 + own.x0) / 2)
        elif own.x1 <= other.x0:
            right = min(right, (own.x1 + other.x0) / 2)
    middle = (own.x0 + own.x1) / 2
    return 2.0 * float(min(middle - left, right - middle))


def _width(line: str, font: FontProperties) -> float:
    """In points."""
    return text_to_path.get_text_width_height_descent(line, font, False)[0]
