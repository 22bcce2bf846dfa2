"""`sodap report`: one page about a run, or about many beside each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sodap.errors import SodapError
from sodap.reporting.loading import ShownRun, find_runs, with_composition, with_stream
from sodap.reporting.pages.report import write_report


def run_report(
    console: Console,
    places: Sequence[Path],
    out: Path | None,
    *,
    images: bool,
    composed: bool,
    against: str | None = None,
) -> None:
    began = time.perf_counter()
    runs = find_runs(places)
    if against is not None and len(runs) == 1:
        raise SodapError(f"there is one run alone, and nothing to compare with '{against}'")
    folder = out or _default_place(runs)
    if folder.exists() and not folder.is_dir():
        raise SodapError(f"cannot write the report to {folder}: there is a file of that name")
    # The images of one run are worth a look; those of many would be decoded for little.
    if len(runs) == 1 or composed:
        runs = [_completed(console, run, images=images, composed=composed) for run in runs]
    page = write_report(runs, folder, against)
    console.print(f"Done in {time.perf_counter() - began:.0f} s: {page}", markup=False)


def _default_place(runs: Sequence[ShownRun]) -> Path:
    home = runs[0].folder
    return home / "report" if len(runs) == 1 and home is not None else Path("report")


def _completed(console: Console, run: ShownRun, *, images: bool, composed: bool) -> ShownRun:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task("reading images", total=None)

        def seen(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        run = with_stream(run, seen, images=images)
        if composed:
            progress.update(bar, description="exchanging heads", completed=0, total=None)
            run = with_composition(run, seen)
    return run
