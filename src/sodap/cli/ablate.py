"""`sodap ablate`: run a method without each of its parts, and show the table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sodap.cli.loading import loading
from sodap.runs.config import check_names


def run_ablation(
    console: Console,
    recipe: str,
    changes: Sequence[str],
    *,
    seeds: int,
    only: str | None,
    extra: bool,
    out: Path | None,
    jobs: int | None,
) -> None:
    check_names(recipe, changes)  # before torch is imported, which takes seconds

    with loading(console):
        from sodap.cli.grids import default_jobs, report_failures, run_with_progress
        from sodap.grids.ablation import Ablation
        from sodap.grids.grid import folder_name
        from sodap.reporting import as_text, conclusion
        from sodap.reporting.tables.ablation import (
            VIEWS,
            ablation_table,
            metrics_of,
            write_ablation,
        )
        from sodap.reporting.tables.formats import recall_text
        from sodap.runs.config import load_config

    stream = folder_name(load_config(recipe, changes).stream)
    ablation = Ablation(
        recipe,
        out or Path("runs") / f"ablation-{stream}",
        changes,
        range(seeds),
        only=[name.strip() for name in (only or "").split(",") if name.strip()],
        extra=extra,
        jobs=default_jobs(changes) if jobs is None else jobs,
        command=sys.argv,
    )
    grid = ablation.grid
    for variant in ablation.left_out:
        console.print(f"{variant.title}: left out, because it is off already", highlight=False)
    summary = run_with_progress(console, grid)
    if summary.done + summary.finished:
        table = ablation_table(ablation)
        for view in VIEWS:
            console.print(f"\n[bold]{view}[/]")
            for part in as_text(table, metrics_of(view), ablation.method.name):
                console.print(part)
        for part in recall_text(table):
            console.print(part)
        console.print()
        console.print(conclusion(table).replace("`", ""), highlight=False, markup=False)
        paths = write_ablation(ablation, table)
        console.print(f"\nTables: {', '.join(map(str, paths))}", markup=False)
    report_failures(summary)
