"""`sodap table`: scores of runs, one table per stream, in five formats."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from sodap.errors import SodapError
from sodap.formats import plural
from sodap.reporting import (
    StreamTable,
    as_csv,
    as_latex,
    as_markdown,
    as_text,
    conclusion,
    find_metrics,
    load_results,
    make_tables,
)
from sodap.reporting.tables.as_json import as_json_content
from sodap.reporting.tables.comparability import mixed_rows
from sodap.reporting.tables.conclusion import warning
from sodap.reporting.tables.formats import recall_markdown, recall_text
from sodap.reporting.tables.metrics import Metric
from sodap.reporting.tables.single_runs import (
    runs_as_csv,
    runs_as_latex,
    runs_as_markdown,
    runs_as_text,
)

FORMATS = ("text", "markdown", "latex", "csv", "json")


def show_tables(
    console: Console,
    places: Sequence[Path],
    form: str,
    against: str | None,
    metrics: Sequence[str],
    *,
    each_seed: bool = False,
) -> None:
    """Print the tables of the runs at `places`; warnings go to standard error.

    `each_seed` gives every run a row of its own. JSON always has the single seeds.
    """
    if form not in FORMATS:
        raise SodapError(f"no format is called '{form}'; there are: {', '.join(FORMATS)}")
    columns = find_metrics(metrics)
    results, unfinished = load_results(places)
    tables = make_tables(results)
    if not tables:
        raise SodapError("no method has finished runs of all folds; finish them first")
    for table in tables:
        if table.left_out:
            print(f"sodap: left out, folds missing: {', '.join(table.left_out)}", file=sys.stderr)
    if unfinished:
        print(f"sodap: left out {plural(unfinished, 'unfinished run')}", file=sys.stderr)
    for row, keys in mixed_rows(results).items():
        print(f"sodap: warning: the runs of {row} differ in {', '.join(keys)}", file=sys.stderr)
    if form in ("csv", "latex"):  # the other formats have it in the conclusion
        for table in tables:
            if table.unequal:
                print(f"sodap: {table.title}: {warning(table)}", file=sys.stderr)

    def reference(table: StreamTable) -> str | None:
        return table.reference(against)

    if form == "json":
        print(json.dumps(as_json_content(tables, columns, reference), indent=1))
    elif form == "csv":
        csv = runs_as_csv(tables, columns) if each_seed else as_csv(tables, columns, reference)
        print(csv, end="")
    else:
        for number, table in enumerate(tables):
            if number:
                print()
            _show(console, table, columns, reference(table), form, each_seed=each_seed)


def _show(
    console: Console,
    table: StreamTable,
    columns: Sequence[Metric],
    against: str | None,
    form: str,
    *,
    each_seed: bool,
) -> None:
    """Print one table as text, Markdown or LaTeX."""
    if form == "latex":
        latex = runs_as_latex(table, columns) if each_seed else as_latex(table, columns, against)
        print(latex, end="")
    elif form == "markdown":
        content = (
            runs_as_markdown(table, columns) if each_seed else as_markdown(table, columns, against)
        )
        recalls = recall_markdown(table)
        print(f"### {table.title}\n\n{content}")
        words = conclusion(table, against)
        print(f"{recalls}\n{words}" if recalls else words)
    else:
        console.print(f"[bold]{escape(table.title)}[/]", highlight=False)
        parts = runs_as_text(table, columns) if each_seed else as_text(table, columns, against)
        for part in (*parts, *recall_text(table)):
            console.print(part)
            console.print()
        console.print(conclusion(table, against).replace("`", ""), highlight=False, markup=False)
