"""`sodap bench` runs a grid of methods; `sodap table` shows what came out, in four formats."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape

from sodap.cli.progress import Bars
from sodap.errors import SodapError
from sodap.formats import plural
from sodap.grids import Grid, GridCallback, GridSummary, Task, read_grid, run_grid
from sodap.grids.search import SearchRecord, Setting, as_changes
from sodap.reporting import (
    as_csv,
    as_latex,
    as_markdown,
    as_text,
    conclusion,
    find_metrics,
    load_results,
    make_tables,
)
from sodap.reporting.tables.comparability import mixed_rows
from sodap.reporting.tables.conclusion import warning
from sodap.runs import RunRecord

FORMATS = ("text", "markdown", "latex", "csv")


def run_bench(
    console: Console,
    name: str,
    changes: Sequence[str],
    *,
    streams: str | None,
    methods: str | None,
    seeds: int | None,
    out: Path | None,
    jobs: int | None,
    search: bool,
) -> None:
    recipe = read_grid(name)
    common = as_changes(recipe.settings)
    on_gpu = torch.cuda.is_available() and "device=cpu" not in changes
    grid = Grid(
        streams=_listed(streams) or recipe.streams,
        methods=_listed(methods) or recipe.method_names(),
        seeds=range(seeds or recipe.seeds),
        out=out or Path("runs") / Path(name).stem,
        changes=[*common, *changes],
        jobs=jobs or (4 if on_gpu else 1),
        search=search,
        command=sys.argv,
    )
    try:
        tasks = ("run or search", "runs and searches") if search else ("run", "runs")
        with GridProgress(console, *tasks) as progress:
            summary = run_grid(grid, progress)
    except KeyboardInterrupt:
        print("sodap: interrupted; the same command goes on where it stopped", file=sys.stderr)
        raise typer.Exit(130) from None
    _conclude(console, grid, summary)
    if summary.failures:
        raise typer.Exit(1)


def _listed(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _conclude(console: Console, grid: Grid, summary: GridSummary) -> None:
    if summary.done + summary.finished:
        console.print()
        show_tables(console, [grid.out], "text", None, ())
    for label, error in summary.failures.items():
        print(f"sodap: failed: {label}: {error}", file=sys.stderr)
    if summary.failures:
        left = f", {plural(summary.not_started, 'run')} not begun" if summary.not_started else ""
        print(
            f"sodap: {len(summary.failures)} failed{left}; the same command tries again",
            file=sys.stderr,
        )


class GridProgress(Bars, GridCallback):
    """One bar with the time left, and a line for whatever has ended."""

    def __init__(self, console: Console, one: str = "run", many: str = "runs") -> None:
        """`one`, `many`: what there is to do, in a word or two."""
        super().__init__(console)
        self.one, self.many = one, many
        self.bar = self.progress.add_task(many, total=None, note="")

    def images_decoded(self, done: int, total: int) -> None:
        words = "reading images, once" if done < total else self.many
        self.progress.update(self.bar, description=words)

    def planned(self, tasks: int, finished: int) -> None:
        self.progress.update(self.bar, total=tasks)
        were = "was" if finished == 1 else "were"
        before = f"; {finished:,} {were} finished before" if finished else ""
        self._say(f"{plural(tasks, self.one, self.many)} to do{before}")

    def search_extended(self, setting: Setting) -> None:
        total = self.progress.tasks[self.bar].total or 0
        self.progress.update(self.bar, total=total + 1)

    def task_done(self, task: Task, record: RunRecord | None) -> None:
        self.progress.update(self.bar, advance=1)
        self._say(f"{task.label}: {_outcome(task, record)}")

    def task_failed(self, task: Task, error: str) -> None:
        self.progress.update(self.bar, advance=1)
        self._say(f"{task.label}: failed, {error}")

    def search_done(self, search: SearchRecord) -> None:
        chosen = " ".join(as_changes(search.chosen))
        self._say(f"{search.stream} {search.method}: chosen {chosen}")

    def warned(self, message: str) -> None:
        print(f"sodap: warning: {message}", file=sys.stderr)


def _outcome(task: Task, record: RunRecord | None) -> str:
    if record is None or record.metrics.accuracy is None:
        return "training broke"
    metrics = record.metrics.accuracy
    seconds = sum(stage.seconds for stage in record.stages)
    if task.setting is not None:
        return f"validation accuracy {metrics.final_average:.3f} ({seconds:.0f} s)"
    forgot = metrics.average_forgetting
    forgetting = "" if forgot is None else f", AvgF {forgot:.3f}"
    return f"AvgACC {metrics.average_accuracy:.3f}{forgetting} ({seconds:.0f} s)"


def show_tables(
    console: Console,
    places: Sequence[Path],
    form: str,
    against: str | None,
    metrics: Sequence[str],
) -> None:
    """What the runs at `places` show, one table a stream, on standard output."""
    if form not in FORMATS:
        raise SodapError(f"no format is called '{form}'; there are: {', '.join(FORMATS)}")
    columns = find_metrics(metrics)
    results, unfinished = load_results(places)
    tables = make_tables(results)
    if unfinished:
        are = "is" if unfinished == 1 else "are"
        words = f"{plural(unfinished, 'run')} {are} not finished and left out"
        print(f"sodap: {words}", file=sys.stderr)
    for row, keys in mixed_rows(results).items():
        print(f"sodap: warning: the runs of {row} differ in {', '.join(keys)}", file=sys.stderr)
    if form in ("csv", "latex"):  # the other formats have it in the conclusion
        for table in tables:
            if table.unequal:
                print(f"sodap: {table.title}: {warning(table)}", file=sys.stderr)
    if form == "csv":
        print(as_csv(tables, columns, lambda table: table.reference(against)), end="")
        return
    for number, table in enumerate(tables):
        reference = table.reference(against)
        if number:
            print()
        if form == "markdown":
            content = as_markdown(table, columns, reference)
            print(f"### {table.title}\n\n{content}\n{conclusion(table)}")
        elif form == "latex":
            print(as_latex(table, columns, reference), end="")
        else:
            console.print(f"[bold]{escape(table.title)}[/]", highlight=False)
            for part in as_text(table, columns, reference):
                console.print(part)
                console.print()
            console.print(conclusion(table).replace("`", ""), highlight=False, markup=False)
