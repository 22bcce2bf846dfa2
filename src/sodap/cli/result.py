"""The result of a run on the terminal: what the model is worth, then how it got there."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sodap.evaluation import MEANINGS, Verdict, recall_per_class
from sodap.formats import MISSING, format_score
from sodap.runs import RunRecord

MAX_CLASSES = 12
"""Largest number of classes shown; of more, those with the lowest recall."""


def show_result(console: Console, record: RunRecord, title: str) -> None:
    """Print final average, constant answer, recall, the accuracy matrix R and its metrics."""
    verdict = record.verdict
    assert verdict is not None
    console.print(f"[bold]{escape(title)}[/], after the last stage", highlight=False)
    _show_verdict(console, record, verdict)
    console.print(_matrix(record))
    console.print(_metrics(record))


def _show_verdict(console: Console, record: RunRecord, verdict: Verdict) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    about = "mean accuracy on the learned domains"
    if verdict.interval is not None:
        low, high = map(format_score, verdict.interval)
        kind = "exact" if len(record.stream.domains) == 1 else "combined from exact ones"
        about += f"; 95 % interval over test images {low} to {high} ({kind})"
    table.add_row("final average", f"[bold]{format_score(verdict.final)}[/]", about)
    always = escape(f"always answering '{verdict.answer}'")
    table.add_row("constant answer", format_score(verdict.constant), always)
    console.print(table)
    for sentence in verdict.sentences:
        style = "bold yellow" if sentence in verdict.warnings else "yellow"
        console.print(f"[{style}]{escape(sentence)}[/]", highlight=False, soft_wrap=True)
    if record.confusions:
        console.print(_recall(record, verdict))


def _recall(record: RunRecord, verdict: Verdict) -> Table:
    """Recall of every class on each learned domain, and on all of them."""
    learned = len(record.R.accuracy)
    domains = [domain.name for domain in record.stream.domains[:learned]]
    by_domain = [recall_per_class(np.array(each)) for each in record.confusions[-1][:learned]]
    rows = list(enumerate(verdict.recalls))
    title = "recall of each class: the share of its images that is recognised"
    if len(rows) > MAX_CLASSES:
        known = [each for each in rows if each[1][2]]
        rows = sorted(known, key=lambda each: each[1][1] / each[1][2])[:MAX_CLASSES]
        title += f" (the {MAX_CLASSES} lowest of {len(verdict.recalls)})"
    table = Table(title=title, title_justify="left")
    table.add_column("class")
    for name in (*domains, "all"):
        table.add_column(escape(name), justify="right")
    for label, (name, right, count) in rows:
        cells = [format_score(found[label]) for found in by_domain]
        overall = f"{right} of {count}" if count else MISSING
        style = "bold yellow" if count and not right else ""
        table.add_row(escape(name), *cells, overall, style=style)
    return table


def _matrix(record: RunRecord) -> Table:
    names = [domain.name for domain in record.stream.domains]
    title = "accuracy after each stage (dim: not learned yet)"
    table = Table(title=title, title_justify="left")
    table.add_column("after learning")
    for name in names:
        table.add_column(escape(name), justify="right")
    for stage, row in enumerate(record.R.accuracy):
        cells = [
            f"{value:.3f}" if domain <= stage else f"[dim]{value:.3f}[/]"
            for domain, value in enumerate(row)
        ]
        table.add_row(escape(names[stage]), *cells)
    return table


def _metrics(record: RunRecord) -> Table:
    """The metrics over all stages, each with its meaning."""
    metrics = record.metrics.accuracy
    assert metrics is not None
    found = {
        "AvgACC": metrics.average_accuracy,
        "AvgF": metrics.average_forgetting,
        "BWT": metrics.backward_transfer,
    }
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, value in found.items():
        table.add_row(name, format_score(value), f"[dim]{MEANINGS[name]}[/]")
    return table
