"""A row for every run, instead of one for all seeds of a method."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.table import Table as TextTable

from sodap.reporting.tables.formats import (
    latex_table,
    markdown_name,
    markdown_table,
    narrow,
    shown,
    text_table,
)
from sodap.reporting.tables.metrics import Metric
from sodap.reporting.tables.stream_table import CONSTANT, StreamTable
from sodap.reporting.tables.table import Cell


def run_heads(metrics: Sequence[Metric], *, short: bool = False) -> list[str]:
    titles = [metric.short or metric.title if short else metric.title for metric in metrics]
    return ["method", "seed", *titles]


def run_rows(table: StreamTable, metrics: Sequence[Metric]) -> list[list[Cell]]:
    """Rows of method, seed and all metrics; the constant answer last."""
    rows = [
        [
            Cell(method),
            Cell(str(seed)),
            *(Cell(m.format(table.scores[method][m.key].get(seed))) for m in metrics),
        ]
        for method in table.methods
        for seed in table.seeds(method)
    ]
    constant = [Cell(metric.format(table.constant.get(metric.key))) for metric in metrics]
    return [*rows, [Cell(CONSTANT), Cell(""), *constant]]


def runs_as_text(table: StreamTable, metrics: Sequence[Metric]) -> list[TextTable]:
    """Tables for a terminal of 80 columns: the main metrics, then the others."""
    parts = narrow(shown(table, metrics))
    return [text_table(run_heads(some, short=True), run_rows(table, some)) for some in parts]


def runs_as_markdown(table: StreamTable, metrics: Sequence[Metric]) -> str:
    metrics = shown(table, metrics)
    rows = [[markdown_name(row[0].text), *row[1:]] for row in run_rows(table, metrics)]
    return markdown_table(run_heads(metrics), rows)


def runs_as_latex(table: StreamTable, metrics: Sequence[Metric]) -> str:
    metrics = shown(table, metrics)
    return latex_table(table.title, run_heads(metrics), run_rows(table, metrics))


def runs_as_csv(tables: Sequence[StreamTable], metrics: Sequence[Metric]) -> str:
    """All numbers with full precision, one line per stream, method and seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["stream", "backbone", "method", "seed", *(metric.key for metric in metrics)])
    for table in tables:
        for method in table.methods:
            for seed in table.seeds(method):
                numbers = [table.scores[method][metric.key].get(seed) for metric in metrics]
                writer.writerow([table.stream, table.backbone, method, seed, *numbers])
        constants = [table.constant.get(metric.key) for metric in metrics]
        writer.writerow([table.stream, table.backbone, CONSTANT, "", *constants])
    return out.getvalue()
