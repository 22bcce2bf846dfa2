"""`sodap table`: scores of runs, one table per stream, in four formats."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from sodap.errors import SodapError
from sodap.formats import plural
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
from sodap.reporting.tables.formats import recall_markdown, recall_text

FORMATS = ("text", "markdown", "latex", "csv")


def show_tables(
    console: Console,
    places: Sequence[Path],
    form: str,
    against: str | None,
    metrics: Sequence[str],
) -> None:
    """Print the tables of the runs at `places`; warnings go to standard error."""
    if form not in FORMATS:
        raise SodapError(f"no format is called '{form}'; there are: {', '.join(FORMATS)}")
    columns = find_metrics(metrics)
    results, unfinished = load_results(places)
    tables = make_tables(results)
    if unfinished:
        print(f"sodap: left out {plural(unfinished, 'unfinished run')}", file=sys.stderr)
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
            recalls = recall_markdown(table)
            print(f"### {table.title}\n\n{content}")
            print(f"{recalls}\n{conclusion(table)}" if recalls else conclusion(table))
        elif form == "latex":
            print(as_latex(table, columns, reference), end="")
        else:
            console.print(f"[bold]{escape(table.title)}[/]", highlight=False)
            for part in as_text(table, columns, reference):
                console.print(part)
                console.print()
            for part in recall_text(table):
                console.print(part)
                console.print()
            console.print(conclusion(table).replace("`", ""), highlight=False, markup=False)
