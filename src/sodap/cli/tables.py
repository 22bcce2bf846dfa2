"""A run's result on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sodap.formats import format_score


def show_result(console: Console, record: Mapping[str, Any], title: str) -> None:
    """The accuracy matrix R and the metrics that follow from it."""
    names = [domain["name"] for domain in record["stream"]["domains"]]
    table = Table(title=escape(f"{title}: accuracy after each stage"), title_justify="left")
    table.add_column("after learning")
    for name in names:
        table.add_column(escape(name), justify="right")
    for stage, row in enumerate(record["R"]["accuracy"]):
        cells = [
            f"{value:.3f}" if domain <= stage else f"[dim]{value:.3f}[/]"
            for domain, value in enumerate(row)
        ]
        table.add_row(escape(names[stage]), *cells)
    console.print(table)
    console.print(metrics_line(record), highlight=False)


def metrics_line(record: Mapping[str, Any]) -> str:
    metrics = record["metrics"]["accuracy"]
    words = {
        "AvgACC": metrics["average_accuracy"],
        "AvgF": metrics["average_forgetting"],
        "final": metrics["final_average"],
        "BWT": metrics["backward_transfer"],
    }
    return "  ".join(f"{k} {format_score(v)}" for k, v in words.items())
