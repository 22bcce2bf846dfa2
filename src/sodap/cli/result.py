"""The result of a run on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sodap.runs import RunRecord


def show_result(console: Console, record: RunRecord, title: str) -> None:
    """Print the accuracy matrix R and its metrics."""
    names = [domain.name for domain in record.stream.domains]
    table = Table(title=escape(f"{title}: accuracy after each stage"), title_justify="left")
    table.add_column("after learning")
    for name in names:
        table.add_column(escape(name), justify="right")
    for stage, row in enumerate(record.R.accuracy):
        cells = [
            f"{value:.3f}" if domain <= stage else f"[dim]{value:.3f}[/]"
            for domain, value in enumerate(row)
        ]
        table.add_row(escape(names[stage]), *cells)
    console.print(table)
    console.print(metrics_line(record), highlight=False)


def metrics_line(record: RunRecord) -> str:
    metrics = record.metrics.accuracy
    assert metrics is not None
    words = {
        "AvgACC": metrics.average_accuracy,
        "AvgF": metrics.average_forgetting,
        "final": metrics.final_average,
        "BWT": metrics.backward_transfer,
    }
    return "  ".join(f"{k} {'–' if v is None else format(v, '.3f')}" for k, v in words.items())
