"""Figures as SVG for pages with a light or dark background, and as PNG."""

from __future__ import annotations

import io
import re
from html import escape

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from sodap.reporting.figures.style import INK, STYLE

FIXED = {**STYLE, "figure.constrained_layout.use": False}
"""Style for saving a figure that is laid out already."""
DOTS_PER_INCH = 144
MARGIN = 3
"""Points left on each side of a title; text is not equally wide in every format."""


def lay_out(figure: Figure) -> None:
    """Lay out a figure, unless it is done, so that SVG and PNG agree."""
    engine = figure.get_layout_engine()
    if engine is None:
        return
    dpi = figure.dpi
    FigureCanvasSVG(figure)  # measures text as in the SVG
    engine.execute(figure)
    figure.dpi = dpi  # measuring changes it
    with rc_context(FIXED):
        figure.set_layout_engine(None)
    _shorten_titles(figure)


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an `<svg>` element; screen readers read `title`.

    The result is deterministic. Two figures on one page need different titles, because the ids of
    their parts are derived from it.
    """
    lay_out(figure)
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({**FIXED, "svg.hashsalt": title}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # Styles and ids would apply to the whole page. The style moves to the root, the ids go.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r' id="image[0-9a-f]+"', "", svg)  # equal images would have the same id
    label = escape(title)
    svg = svg.replace(
        "<svg ",
        f'<svg role="img" aria-label="{label}" '
        f'style="stroke-linejoin: round; stroke-linecap: butt" ',
        1,
    )
    svg = svg.replace(">", f"><title>{label}</title>", 1)
    return svg.replace(INK, "currentColor").replace("'DejaVu Sans', ", "system-ui, ")


def to_png(figure: Figure) -> bytes:
    """The figure on white, with the layout of the SVG."""
    lay_out(figure)
    buffer = io.BytesIO()
    with rc_context(FIXED):
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, facecolor="white")
    return buffer.getvalue()


# ------------------------------------------------------------------ titles of panels


def _shorten_titles(figure: Figure) -> None:
    """Shorten titles of axes that are too wide; layout engines ignore their width."""
    titled = [axes for axes in figure.axes if axes.get_title()]
    for axes in titled:
        points = _space(axes, titled) * figure.get_figwidth() * 72 - 2 * MARGIN
        lines = axes.get_title().split("\n")
        font = axes.title.get_fontproperties()
        axes.title.set_text("\n".join(_shortened(line, points, font) for line in lines))


def _shortened(line: str, points: float, font: FontProperties) -> str:
    """The line, without its middle if it is too wide: names often differ at an end."""
    if _width(line, font) <= points:
        return line
    for left in range(len(line) - 1, 1, -1):
        head, tail = line[: (left + 1) // 2], line[-(left // 2) :]
        if _width(f"{head}…{tail}", font) <= points:
            return f"{head}…{tail}"
    return "…"


def _space(axes: Axes, titled: list[Axes]) -> float:
    """Largest width of a title as a share of the figure: up to halfway to the next axes.

    All rows count, so that a single axes in the last row does not reach the label at the edge.
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
    """Width of a text in points."""
    return text_to_path.get_text_width_height_descent(line, font, False)[0]
