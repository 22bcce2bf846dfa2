"""Running a grid with a progress bar, for `sodap bench` and `sodap ablate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import typer
from rich.console import Console

from sodap.bars import Bars
from sodap.formats import format_duration, plural
from sodap.grids import Grid, GridCallback, GridSummary, Task, run_grid
from sodap.grids.search import SearchRecord, Setting, as_changes
from sodap.runs import RunRecord


def default_jobs(changes: Sequence[str]) -> int:
    """4 runs at a time on a GPU, else 1."""
    return 4 if torch.cuda.is_available() and "device=cpu" not in changes else 1


def run_with_progress(console: Console, grid: Grid) -> GridSummary:
    """Run a grid; Ctrl-C ends the command."""
    tasks = ("run or search", "runs and searches") if grid.search else ("run", "runs")
    try:
        with GridProgress(console, *tasks) as progress:
            return run_grid(grid, progress)
    except KeyboardInterrupt:
        print("sodap: interrupted; continue with the same command", file=sys.stderr)
        raise typer.Exit(130) from None


def report_failures(summary: GridSummary) -> None:
    """Print what failed; exit code 1 if anything did."""
    for label, error in summary.failures.items():
        print(f"sodap: failed: {label}: {error}", file=sys.stderr)
    if summary.failures:
        left = f", {plural(summary.not_started, 'run')} not started" if summary.not_started else ""
        count = len(summary.failures)
        print(f"sodap: {count} failed{left}; try again with the same command", file=sys.stderr)
        raise typer.Exit(1)


class GridProgress(Bars, GridCallback):
    """One bar with the time left, and a line for each finished task."""

    def __init__(self, console: Console, one: str = "run", many: str = "runs") -> None:
        """`one`, `many`: names of the tasks, singular and plural."""
        super().__init__(console)
        self.one, self.many = one, many
        self.bar = self.progress.add_task(many, total=None, note="")

    def images_decoded(self, done: int, total: int) -> None:
        words = "reading images, once" if done < total else self.many
        self.progress.update(self.bar, description=words)

    def planned(self, tasks: int, finished: int) -> None:
        self.progress.update(self.bar, total=tasks)
        before = f"; {finished:,} finished before" if finished else ""
        self._print(f"{plural(tasks, self.one, self.many)} to do{before}")

    def search_extended(self, setting: Setting) -> None:
        total = self.progress.tasks[self.bar].total or 0
        self.progress.update(self.bar, total=total + 1)

    def task_done(self, task: Task, record: RunRecord | None) -> None:
        self.progress.update(self.bar, advance=1)
        self._print(f"{task.label}: {_outcome(task, record)}")

    def task_failed(self, task: Task, error: str) -> None:
        self.progress.update(self.bar, advance=1)
        self._print(f"{task.label}: failed, {error}")

    def search_done(self, search: SearchRecord) -> None:
        self._print(
            f"{search.stream} {search.method}: chosen {' '.join(as_changes(search.chosen))}"
        )

    def warned(self, message: str) -> None:
        print(f"sodap: warning: {message}", file=sys.stderr)


def _outcome(task: Task, record: RunRecord | None) -> str:
    if record is None or record.metrics.accuracy is None:
        return "training broke"
    metrics = record.metrics.accuracy
    seconds = format_duration(sum(stage.seconds for stage in record.stages))
    if task.setting is not None:
        return f"validation accuracy {metrics.final_average:.3f} ({seconds})"
    forgot = metrics.average_forgetting
    forgetting = "" if forgot is None else f", AvgF {forgot:.3f}"
    scores = f"final {metrics.final_average:.3f}, AvgACC {metrics.average_accuracy:.3f}{forgetting}"
    return f"{scores} ({seconds})"
