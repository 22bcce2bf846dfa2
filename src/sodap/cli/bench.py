"""`sodap bench`: run a grid of streams, methods, folds and seeds, and show its table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from sodap.cli.loading import loading
from sodap.grids.grid import Grid
from sodap.grids.recipe import read_grid
from sodap.grids.search import as_changes


def run_bench(
    console: Console,
    name: str,
    changes: Sequence[str],
    *,
    streams: str | None,
    methods: str | None,
    seeds: int | None,
    folds: int | None,
    out: Path | None,
    jobs: int | None,
    search: bool,
) -> None:
    recipe = read_grid(name)
    grid = Grid(
        streams=_listed(streams) or recipe.streams,
        methods=_listed(methods) or recipe.method_names(),
        seeds=range(seeds or recipe.seeds),
        folds=folds or recipe.folds,
        out=out or Path("runs") / Path(name).stem,
        changes=[*as_changes(recipe.settings), *changes],
        search=search,
        command=sys.argv,
    )
    grid.check()

    with loading(console):
        from sodap.cli.grids import default_jobs, report_failures, run_with_progress
        from sodap.cli.table import show_tables

    jobs = default_jobs(changes) if jobs is None else jobs
    summary = run_with_progress(console, replace(grid, jobs=jobs))
    if summary.done + summary.finished:
        console.print()
        show_tables(console, [grid.out], "text", None, ())
    report_failures(summary)


def _listed(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]
