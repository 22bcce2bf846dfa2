"""`sodap report`: a page about one run, or a comparison of several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sodap.bars import Bars
from sodap.errors import SodapError
from sodap.formats import format_duration
from sodap.reporting import LoadedRun, load_runs, with_composition, with_stream, write_report


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
    runs = load_runs(places)
    if against is not None and len(runs) == 1:
        raise SodapError(f"cannot compare with '{against}': there is only one run")
    home = runs[0].folder
    folder = out or (home / "report" if len(runs) == 1 and home is not None else Path("report"))
    if folder.exists() and not folder.is_dir():
        raise SodapError(f"cannot write the report to {folder}, which is a file")
    # A page about several runs shows no images, so that they need not be decoded.
    if len(runs) == 1 or composed:
        runs = [_completed(console, run, images=images, composed=composed) for run in runs]
    page = write_report(runs, folder, against)
    seconds = format_duration(time.perf_counter() - began)
    console.print(f"Done in {seconds}: {page}", markup=False)


def _completed(console: Console, run: LoadedRun, *, images: bool, composed: bool) -> LoadedRun:
    """The run with its images and, if wanted, its cross-composition, with a progress bar."""
    with Bars(console) as bars:
        progress = bars.progress
        bar = progress.add_task("reading images", total=None, note="")

        def on_progress(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        run = with_stream(run, on_progress, show_images=images)
        if composed:
            progress.update(bar, description="measuring cross-composition", completed=0, total=None)
            run = with_composition(run, on_progress)
    return run
