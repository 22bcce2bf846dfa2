"""Tables of methods as text for a terminal, Markdown, LaTeX and CSV.

Cells are mean ± standard deviation over seeds. The best mean of a column is bold; the constant
answer, variants and methods that see all domains at once are not ranked. A difference is bold
if it is significant, corrected for all differences of its column. With fewer than `MIN_SEEDS`
common seeds nothing is bold.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from rich.markup import escape
from rich.table import Table as TextTable
from rich.text import Text

from sodap.evaluation import MEANINGS, MIN_SEEDS
from sodap.formats import MISSING, format_score
from sodap.reporting.tables.metrics import Metric
from sodap.reporting.tables.stream_table import CONSTANT, StreamTable
from sodap.reporting.tables.table import Cell, difference_cell

MAX_CLASSES = 12
"""Most classes of a table of recalls."""
RECALL_LEGEND = "Recall of each class after the last stage, over all domains. Bold: never found."
MAIN_METRICS = ("average_accuracy", "average_forgetting", "forgetting_by_chance", "final_average")
"""Metrics of the first table on a narrow terminal; three of them fit."""
MOST_COLUMNS = 5
"""Most metrics of each further table."""


def method_rows(
    table: StreamTable, metrics: Sequence[Metric], against: str | None, plus: str = " ± "
) -> list[list[Cell]]:
    """Rows of method, seeds, all metrics, and the difference to `against` in the first metric."""
    best = {metric.key: table.winners(metric) for metric in metrics}
    gaps = {} if against is None else table.family(against, metrics[0].key)
    rows = []
    for method in table.methods:
        row = [Cell(method), Cell(str(len(table.seeds(method))))]
        for metric in metrics:
            text = metric.format_mean(table.mean(method, metric.key), plus)
            row.append(Cell(text, bold=method in best[metric.key]))
        rows.append([*row, *([difference_cell(gaps.get(method))] if against is not None else [])])
    constant = [Cell(metric.format(table.constant.get(metric.key))) for metric in metrics]
    ends = [Cell(MISSING)] if against is not None else []
    return [*rows, [Cell(CONSTANT), Cell(MISSING), *constant, *ends]]


def shown(table: StreamTable, metrics: Sequence[Metric]) -> list[Metric]:
    """The metrics without those that no run has, such as answers of earlier versions."""
    known = [m for m in metrics if any(table.mean(row, m.key) for row in table.methods)]
    return known or list(metrics)


def method_heads(metrics: Sequence[Metric], against: str | None) -> list[str]:
    ends = [] if against is None else [f"{metrics[0].title} minus {against}"]
    return ["method", "seeds", *(metric.title for metric in metrics), *ends]


def legend(table: StreamTable, metrics: Sequence[Metric], against: str) -> str:
    """What brackets and bold mean, or why there are none."""
    others = [method for method in table.methods if method != against]
    enough = any(len(table.common_seeds(method, against)) >= MIN_SEEDS for method in others)
    if not enough and not any(table.winners(metric) for metric in metrics):
        return f"Fewer than {MIN_SEEDS} seeds in common: no intervals, and nothing is bold."
    return (
        f"In brackets: {table.intervals}. Bold: the best of a column, and a difference that is "
        f"more than {table.noise}, corrected for all differences of the column (Holm)."
    )


def meanings(metrics: Sequence[Metric]) -> str:
    """What the scores of a table mean, a line each."""
    return "\n".join(f"{m.title}: {MEANINGS[m.title]}" for m in metrics if m.title in MEANINGS)


def as_text(
    table: StreamTable, metrics: Sequence[Metric], against: str | None
) -> list[TextTable | Text]:
    """Tables for a terminal of 80 columns: the main metrics, then the others, then a legend."""
    metrics = shown(table, metrics)
    notes = [Text(meanings(metrics), "dim")]
    if against is not None:
        notes.insert(0, Text(legend(table, metrics, against)))
    first, *rest = narrow(metrics)
    others = [_method_table(table, some, None) for some in rest]
    return [_method_table(table, first, against), *others, *notes]


def narrow(metrics: Sequence[Metric]) -> list[list[Metric]]:
    """The metrics of each table on a narrow terminal: the main ones, then the others."""
    if len(metrics) <= 3:
        return [list(metrics)]
    main = [metric for metric in metrics if metric.key in MAIN_METRICS]
    first = (main or list(metrics))[:3]
    rest = [metric for metric in metrics if metric not in first]
    return [first, *(rest[at : at + MOST_COLUMNS] for at in range(0, len(rest), MOST_COLUMNS))]


def _method_table(table: StreamTable, metrics: Sequence[Metric], against: str | None) -> TextTable:
    heads = ["method", "n", *(metric.short or metric.title for metric in metrics)]
    heads += method_heads(metrics, against)[len(heads) :]
    return text_table(heads, method_rows(table, metrics, against, plus="±"))


def recall_rows(table: StreamTable) -> tuple[list[str], list[list[Cell]]]:
    """Heads, and rows of method and mean recall of each class; never found is bold.

    No rows if the records have no confusion matrices, or too many classes for a table.
    """
    classes = list(dict.fromkeys(name for found in table.recalls.values() for name in found))
    if not classes or len(classes) > MAX_CLASSES:
        return [], []
    rows = []
    for method in table.methods:
        missed = table.never_found(method)
        cells = [
            Cell(format_score(table.recall(method, name)), bold=name in missed) for name in classes
        ]
        rows.append([Cell(method), *cells])
    constant = [Cell("1.000" if name == table.constant_class else "0.000") for name in classes]
    return ["method", *classes], [*rows, [Cell(CONSTANT), *constant]]


def recall_text(table: StreamTable) -> list[TextTable | Text]:
    """Recall of each class for a terminal; empty if it is not known."""
    heads, rows = recall_rows(table)
    return [Text(RECALL_LEGEND), text_table(heads, rows)] if rows else []


def recall_markdown(table: StreamTable) -> str:
    """Recall of each class; empty if it is not known."""
    heads, rows = recall_rows(table)
    shown = [[markdown_name(row[0].text), *row[1:]] for row in rows]
    return f"{RECALL_LEGEND}\n\n{markdown_table(heads, shown)}" if rows else ""


def text_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> TextTable:
    shown = TextTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for place, head in enumerate(heads):
        # Only the names of methods may be cut: a number that is cut is another number.
        shown.add_column(
            escape(head),
            justify="left" if place == 0 else "right",
            no_wrap=place > 0,
            overflow="fold",
        )
    for row in rows:
        shown.add_row(
            *(f"[bold]{escape(cell.text)}[/]" if cell.bold else escape(cell.text) for cell in row)
        )
    return shown


def as_markdown(table: StreamTable, metrics: Sequence[Metric], against: str | None) -> str:
    metrics = shown(table, metrics)
    heads = method_heads(metrics, f"`{against}`" if against else None)
    rows = [[markdown_name(row[0].text), *row[1:]] for row in method_rows(table, metrics, against)]
    text = markdown_table(heads, rows)
    return text if against is None else f"{text}\n{legend(table, metrics, against)}\n"


def markdown_name(method: str) -> Cell:
    return Cell(method if method == CONSTANT else f"`{method}`")


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table with numbers in all columns but the first."""
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for row in rows:
        texts = [f"**{cell.text}**" if cell.bold else cell.text for cell in row]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def as_latex(table: StreamTable, metrics: Sequence[Metric], against: str | None) -> str:
    metrics = shown(table, metrics)
    heads = method_heads(metrics, against)
    return latex_table(table.title, heads, method_rows(table, metrics, against))


def latex_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A `tabular` with the rules of booktabs."""
    lines = [
        f"% {title}; needs \\usepackage{{booktabs}}",
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        f"{' & '.join(map(_tex, heads))} \\\\",
        "\\midrule",
    ]
    for row in rows:
        if row[0].text == CONSTANT:
            lines.append("\\midrule")
        cells = [f"\\textbf{{{_tex(c.text)}}}" if c.bold else _tex(c.text) for c in row]
        lines.append(f"{' & '.join(cells)} \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


_TEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "–": "--"}
)


def _tex(text: str) -> str:
    """Escaped text; a hyphen before a digit becomes a minus."""
    return re.sub(r"(?<![^\W_])-(?=\d)", "$-$", text.translate(_TEX))


def as_csv(
    tables: Sequence[StreamTable],
    metrics: Sequence[Metric],
    against: Callable[[StreamTable], str | None],
) -> str:
    """All numbers with full precision, one line per stream and method."""
    parts = ("mean", "sd", "low", "high", "difference", "difference_low", "difference_high")
    heads = [f"{metric.key}_{part}" for metric in metrics for part in parts]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["stream", "backbone", "method", "seeds", "against", *heads])
    for table in tables:
        reference = against(table)
        for method in table.methods:
            numbers: list[float | None] = []
            for metric in metrics:
                found = table.mean(method, metric.key)
                gap = table.difference(method, reference, metric.key) if reference else None
                numbers += [found.mean, found.sd, found.low, found.high] if found else [None] * 4
                numbers += [gap.mean, gap.low, gap.high] if gap else [None] * 3
            seeds = len(table.seeds(method))
            writer.writerow(
                [table.stream, table.backbone, method, seeds, reference or "", *numbers]
            )
        constants = [
            value
            for metric in metrics
            for value in (table.constant.get(metric.key), *[None] * (len(parts) - 1))
        ]
        writer.writerow([table.stream, table.backbone, CONSTANT, "", "", *constants])
    return out.getvalue()
