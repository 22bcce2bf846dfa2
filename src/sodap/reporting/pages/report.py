"""Write the report of one or several runs: a self-contained HTML page, and its figures."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sodap.formats import plural
from sodap.reporting.figures.svg import to_png, to_svg
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, Section
from sodap.reporting.pages.comparison import FEW_RUNS, comparison_sections, scores_sentence
from sodap.reporting.pages.sections import run_sections
from sodap.reporting.tables.table import Cell
from sodap.storage import write_bytes
from sodap.version import __version__


def write_report(runs: Sequence[LoadedRun], out: Path, against: str | None = None) -> Path:
    """Write OUT/index.html, and OUT/figures/NAME.svg and .png; return the path of the page.

    The page of several runs links to the pages of single runs that exist.
    """
    if len(runs) == 1:
        sections = run_sections(runs[0])
    else:
        sections = comparison_sections(runs, against, [_link(run, out) for run in runs])
    page = out / "index.html"
    svgs = draw(sections)
    for block in (block for section in sections for block in section.figures):
        write_bytes(out / "figures" / f"{block.name}.svg", svgs[block.name].encode())
        write_bytes(out / "figures" / f"{block.name}.png", to_png(block.figure))
    write_bytes(page, report_page(runs, sections, svgs).encode())
    return page


def page_of(run: LoadedRun) -> Path | None:
    """Default path of the page about a single run."""
    return None if run.folder is None else run.folder / "report" / "index.html"


def _link(run: LoadedRun, out: Path) -> str:
    """Address of a run's own page relative to `out`; empty if there is none."""
    page = page_of(run)
    return Path(os.path.relpath(page, out)).as_posix() if page and page.is_file() else ""


def draw(sections: Sequence[Section]) -> dict[str, str]:
    """SVG of every figure by name."""
    blocks = [block for section in sections for block in section.figures]
    return {block.name: to_svg(block.figure, block.title) for block in blocks}


def report_page(
    runs: Sequence[LoadedRun], sections: Sequence[Section], svgs: dict[str, str] | None = None
) -> str:
    """HTML of the page, with its figures."""
    environment = Environment(
        loader=PackageLoader("sodap.reporting.pages"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"inline": inline, "kind": _kind, "cell": _cell}
    svgs = draw(sections) if svgs is None else svgs
    return environment.get_template("report.html.j2").render(
        title=runs[0].title if len(runs) == 1 else _title(runs),
        opening=_opening(runs),
        unfinished=[run for run in runs if not run.finished],
        warnings=_warnings(runs),
        sections=sections,
        svgs={name: Markup(svg) for name, svg in svgs.items()},
        version=__version__,
    )


def _title(runs: Sequence[LoadedRun]) -> str:
    methods = {run.name for run in runs}
    streams = {run.stream_name for run in runs}
    where = next(iter(streams)) if len(streams) == 1 else plural(len(streams), "stream")
    return f"{plural(len(runs), 'run')} of {plural(len(methods), 'method')} on {where}"


def _opening(runs: Sequence[LoadedRun]) -> str:
    """The result in short, for a few runs that can be compared directly."""
    stages = {(run.stream_name, len(run.stages)) for run in runs}
    distinct = len({run.name for run in runs}) == len(runs)
    if len(runs) <= FEW_RUNS and len(stages) == 1 and distinct and runs[0].stages:
        return scores_sentence(runs)
    if len(runs) == 1:
        return f"{runs[0].name} has not finished a stage of {runs[0].stream_name}."
    streams = list(dict.fromkeys(run.stream_name for run in runs))
    if len(streams) == 1:
        return f"Domains: {' → '.join(next((r.domains for r in runs if r.stages), []))}."
    return f"Streams: {', '.join(streams)}."


def _warnings(runs: Sequence[LoadedRun]) -> list[str]:
    """What speaks against a few runs; for many it is in the section on what went wrong."""
    if len(runs) > FEW_RUNS:
        return []
    verdicts = [(run, run.record.verdict) for run in runs]
    if len(runs) == 1:
        return [sentence for _, verdict in verdicts if verdict for sentence in verdict.sentences]
    return [
        f"{run.title}: {sentence}"
        for run, verdict in verdicts
        if verdict
        for sentence in verdict.warnings
    ]


def inline(text: str) -> Markup:
    """Escaped text, with words between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _cell(content: str | Cell) -> Cell:
    return content if isinstance(content, Cell) else Cell(content)


def _kind(block: Block) -> str:
    return type(block).__name__.lower()
