"""`sodap report`: from the folders of runs to one page and its figures; no other file is needed."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import rc_context

from sodap.formats import plural
from sodap.reporting.figures.svg import PLACED, lay_out, to_svg
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Cell, Drawing, Section
from sodap.reporting.pages.comparison import comparison_sections
from sodap.reporting.pages.lead import lead
from sodap.reporting.pages.sections import sections_of
from sodap.storage import write_bytes
from sodap.version import __version__

DOTS_PER_INCH = 144


def write_report(runs: Sequence[ShownRun], out: Path, against: str | None = None) -> Path:
    """Write OUT/index.html and OUT/figures/NAME.svg and .png; the path of the page."""
    sections = sections_of(runs[0]) if len(runs) == 1 else comparison_sections(runs, against)
    drawings = [drawing for section in sections for drawing in section.drawings]
    svgs = {drawing.name: to_svg(drawing.figure, drawing.title) for drawing in drawings}
    for drawing in drawings:
        home = out / "figures"
        write_bytes(home / f"{drawing.name}.svg", svgs[drawing.name].encode())
        write_bytes(home / f"{drawing.name}.png", _png(drawing))
    page = out / "index.html"
    write_bytes(page, report_page(runs, sections, svgs).encode())
    return page


def report_page(
    runs: Sequence[ShownRun], sections: Sequence[Section], svgs: dict[str, str] | None = None
) -> str:
    """The page as HTML, figures included."""
    if svgs is None:
        svgs = {d.name: to_svg(d.figure, d.title) for s in sections for d in s.drawings}
    pages = Environment(
        loader=PackageLoader("sodap.reporting.pages"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    pages.filters |= {"inline": inline, "kind": _kind, "cell": as_cell}
    return pages.get_template("report.html.j2").render(
        title=runs[0].title if len(runs) == 1 else _together(runs),
        opening=_opening(runs),
        unfinished=[run for run in runs if run.status != "finished"],
        sections=sections,
        svgs={name: Markup(svg) for name, svg in svgs.items()},
        version=__version__,
    )


def _together(runs: Sequence[ShownRun]) -> str:
    methods = {run.name for run in runs}
    streams = {run.stream_name for run in runs}
    where = next(iter(streams)) if len(streams) == 1 else plural(len(streams), "stream")
    return f"{plural(len(runs), 'run')} of {plural(len(methods), 'method')} on {where}"


def _opening(runs: Sequence[ShownRun]) -> str:
    if len(runs) > 1:
        names = dict.fromkeys(run.stream_name for run in runs)
        return f"Learned one domain after the other on {', '.join(names)}."
    (run,) = runs
    if not run.learned:
        return f"{run.name} was to learn {run.stream_name}; it has not finished a stage."
    return lead({run.name: run.record})


def _png(drawing: Drawing) -> bytes:
    """On white, for slides and papers; things lie where the SVG has them."""
    lay_out(drawing.figure)
    buffer = io.BytesIO()
    with rc_context(PLACED):
        drawing.figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, facecolor="white")
    return buffer.getvalue()


def inline(text: str) -> Markup:
    """Escaped, with `words` between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def as_cell(content: str | Cell) -> Cell:
    return content if isinstance(content, Cell) else Cell(content)


def _kind(block: Block) -> str:
    return type(block).__name__.lower()
