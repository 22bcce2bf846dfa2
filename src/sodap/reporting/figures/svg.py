"""One look for every figure, and its way onto a page that may be light or dark."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from sodap.reporting.figures.titles import fit_titles

# Text and axes are drawn in this almost black; on the page they take the colour of its text.
INK = "#010101"

# Seen apart by colour-blind eyes, and against white as well as against black.
METHOD_COLOURS = ("#2f86d0", "#d9660a", "#1b9e77", "#b565a7", "#8172c8")

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a domain may have a dollar in its name
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

PLACED = {**STYLE, "figure.constrained_layout.use": False}
"""The same for figures that are laid out: nothing moves when they are saved."""


def lay_out(figure: Figure) -> None:
    """Find a place for everything, once and for all: each format would else draw the figure twice.

    What was laid out before stays where it is.
    """
    engine = figure.get_layout_engine()
    if engine is None:
        return
    dots = figure.dpi
    FigureCanvasSVG(figure)  # words are as wide as in the SVG
    engine.execute(figure)
    figure.dpi = dots  # measuring has changed it
    with rc_context(PLACED):
        figure.set_layout_engine(None)
    fit_titles(figure)


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an `<svg>` element that `title` describes to those who cannot see it.

    The same figure always gives the same text. Two figures on one page need two titles, because
    the names of their inner parts follow from it.
    """
    lay_out(figure)
    buffer = io.StringIO()
    unsigned = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({**PLACED, "svg.hashsalt": title}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=unsigned)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # Style and names would leak into the page: the one moves to the root, the others go.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r' id="image[0-9a-f]+"', "", svg)  # two equal pictures would share it
    label = escape(title)
    svg = svg.replace(
        "<svg ",
        f'<svg role="img" aria-label="{label}" '
        f'style="stroke-linejoin: round; stroke-linecap: butt" ',
        1,
    )
    svg = svg.replace(">", f"><title>{label}</title>", 1)
    return svg.replace(INK, "currentColor").replace("'DejaVu Sans', ", "system-ui, ")
