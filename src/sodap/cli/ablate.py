"""`sodap ablate`: the method whole, then without each of its parts, and the table of the paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sodap.cli.bench import GridProgress
from sodap.formats import plural
from sodap.grids import Ablation, run_grid
from sodap.grids.ablation_table import (
    SCORES,
    Row,
    show,
    show_points,
    table_of,
    write_table,
)
from sodap.runs import load_config


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
    stream = load_config(recipe, changes).stream
    on_gpu = torch.cuda.is_available() and "device=cpu" not in changes
    ablation = Ablation(
        recipe,
        out or Path("runs") / f"ablation-{Path(stream).resolve().stem}",
        changes,
        range(seeds),
        only=[name.strip() for name in (only or "").split(",") if name.strip()],
        extra=extra,
        jobs=jobs or (4 if on_gpu else 1),
        command=sys.argv,
    )
    grid = ablation.grid()
    for variant in ablation.left_out():
        console.print(f"{variant.title}: left out, it is off already", highlight=False)
    try:
        with GridProgress(console) as progress:
            summary = run_grid(grid, progress)
    except KeyboardInterrupt:
        print("sodap: interrupted; the same command goes on where it stopped", file=sys.stderr)
        raise typer.Exit(130) from None
    rows = table_of(ablation)
    if any(row.runs for row in rows):
        paths = write_table(ablation, rows)
        console.print()
        console.print(terminal_table(f"residual-sodap on {stream}", rows))
        console.print(
            "Δ: points against the full method, seed by seed; *: two 95 % intervals leave 0 out, "
            "each for itself: not corrected for the number of comparisons.",
            highlight=False,
        )
        console.print(f"The same as a file: {', '.join(map(str, paths))}", markup=False)
    for label, error in summary.failures.items():
        print(f"sodap: failed: {label}: {error}", file=sys.stderr)
    if summary.failures:
        count = len(summary.failures)
        print(
            f"sodap: {plural(count, 'run')} failed; the same command tries again", file=sys.stderr
        )
        raise typer.Exit(1)


def terminal_table(title: str, rows: Sequence[Row]) -> Table:
    shown = Table(
        title=escape(title), title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for place, head in enumerate(["", "n", *SCORES.values(), "ΔAvgACC", "ΔAvgF"]):
        shown.add_column(head, justify="right" if place else "left", no_wrap=place > 0)
    for group, members in groupby(rows, lambda row: row.variant.group):
        if group:
            shown.add_row(f"[dim]{escape(group)}[/]")
        for row in members:
            cells = [show(row.spread(score), plus="±") for score in SCORES]
            cells += [show_points(row, score) for score in SCORES]
            shown.add_row(escape(row.variant.title), str(row.runs), *cells)
    return shown
