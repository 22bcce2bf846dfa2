"""A table of results for a terminal, for Markdown, for LaTeX, and as CSV for everything else.

Numbers are mean ± standard deviation over seeds. The best of a column is bold; the constant row,
variants and methods that see all domains at once take no part in that. A difference is bold where
it is more than the noise between seeds, corrected for all differences of its column. With fewer
than `FEWEST` seeds in common nothing is bold.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sodap.evaluation import FEWEST, Difference, Spread
from sodap.formats import MISSING, format_bytes, format_count, format_difference, format_score
from sodap.reporting.tables.significance import Claim, claims
from sodap.reporting.tables.stream_table import CONSTANT, Metric, StreamTable

Cell = tuple[str, bool]
"""What is shown, and whether it is bold."""

SCORES = ("average_accuracy", "average_forgetting", "final_average")


def rows_of(
    table: StreamTable, metrics: Sequence[Metric], against: str | None, plus: str = " ± "
) -> list[list[Cell]]:
    """Method, seeds, a cell a metric, and the difference in the first metric to `against`."""
    best = {metric.key: table.winners(metric) for metric in metrics}
    others = [method for method in table.methods if method != against]
    gaps: dict[str, Claim | None] = {}
    if against is not None:
        found = claims([(table, method, against, metrics[0].key) for method in others])
        gaps = dict(zip(others, found, strict=True))
    rows: list[list[Cell]] = []
    for method in table.methods:
        row = [(method, False), (str(len(table.seeds(method))), False)]
        for metric in metrics:
            text = show_spread(table.spread(method, metric.key), metric, plus)
            row.append((text, method in best[metric.key]))
        if against is not None:
            row.append(show_claim(gaps.get(method)))
        rows.append(row)
    last = [(CONSTANT, False), (MISSING, False)]
    last += [(show(table.constant.get(metric.key), metric), False) for metric in metrics]
    if against is not None:
        last.append((MISSING, False))
    return [*rows, last]


def heads_of(metrics: Sequence[Metric], against: str | None) -> list[str]:
    ends = [] if against is None else [f"{metrics[0].title} minus {against}"]
    return ["method", "seeds", *(metric.title for metric in metrics), *ends]


def legend(table: StreamTable, metrics: Sequence[Metric], against: str) -> str:
    """What bold and brackets mean; or that there are none, and why."""
    others = [method for method in table.methods if method != against]
    enough = any(len(table.shared(method, against)) >= FEWEST for method in others)
    if not enough and not any(table.winners(metric) for metric in metrics):
        return f"Fewer than {FEWEST} seeds in common: no intervals, and nothing is bold."
    return (
        "In brackets: 95 % bootstrap interval over seeds. Bold: the best of a column, and a "
        "difference that is more than the noise between seeds."
    )


# ---------------------------------------------------------------------- single numbers


def show(value: float | None, metric: Metric) -> str:
    if value is None:
        return MISSING
    if metric.unit == "score":
        return format_score(value)
    return format_bytes(value) if metric.unit == "bytes" else format_count(value)


def show_spread(found: Spread | None, metric: Metric, plus: str) -> str:
    if found is None:
        return MISSING
    middle = show(found.mean, metric)
    if found.sd is None or (metric.unit != "score" and found.sd == 0):
        return middle  # a size that is the same for every seed
    # In the digits of the mean a small deviation is none.
    unseen = metric.unit != "score" and show(found.mean + found.sd, metric) == middle
    return f"{middle}{plus}{'0' if unseen else show(found.sd, metric)}"


def show_claim(claim: Claim | None) -> Cell:
    """A difference, bold if it is more than the noise between seeds."""
    return (MISSING, False) if claim is None else (show_difference(claim.gap), claim.certain)


def show_difference(gap: Difference | None) -> str:
    if gap is None:
        return MISSING
    return format_difference(gap.mean, gap.low, gap.high)


# ---------------------------------------------------------------------- the formats


def as_text(
    table: StreamTable, metrics: Sequence[Metric], against: str | None
) -> list[Table | Text]:
    """For a terminal of 80 columns: the scores that decide, then the rest, if all are wanted.

    Where methods are compared, what bold and brackets mean comes last.
    """
    told = [Text(legend(table, metrics, against))] if against is not None else []
    if len(metrics) <= len(SCORES):
        return [_grid(table, metrics, against), *told]
    first = [metric for metric in metrics if metric.key in SCORES] or list(metrics[:3])
    rest = [metric for metric in metrics if metric not in first]
    return [_grid(table, first, against), _grid(table, rest, None), *told]


def _grid(table: StreamTable, metrics: Sequence[Metric], against: str | None) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    heads = ["method", "n", *(metric.short or metric.title for metric in metrics)]
    heads += heads_of(metrics, against)[len(heads) :]
    for place, head in enumerate(heads):
        # Cut the name of a method before a number: a number that is cut is another number.
        shown.add_column(
            escape(head),
            justify="left" if place == 0 else "right",
            no_wrap=place > 0,
            overflow="fold",
        )
    for row in rows_of(table, metrics, against, plus="±"):
        shown.add_row(*(f"[bold]{escape(text)}[/]" if bold else escape(text) for text, bold in row))
    return shown


def as_markdown(table: StreamTable, metrics: Sequence[Metric], against: str | None) -> str:
    heads = heads_of(metrics, f"`{against}`" if against else None)
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for (method, _), *cells in rows_of(table, metrics, against):
        name = method if method == CONSTANT else f"`{method}`"
        texts = [f"**{text}**" if bold else text for text, bold in cells]
        lines.append(f"| {' | '.join([name, *texts])} |")
    if against is not None:
        lines += ["", legend(table, metrics, against)]
    return "\n".join(lines) + "\n"


def as_latex(table: StreamTable, metrics: Sequence[Metric], against: str | None) -> str:
    """A `tabular` with the rules of booktabs."""
    heads = heads_of(metrics, against)
    lines = [
        f"% {table.title}; needs \\usepackage{{booktabs}}",
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        f"{' & '.join(map(_tex, heads))} \\\\",
        "\\midrule",
    ]
    for row in rows_of(table, metrics, against):
        if row[0][0] == CONSTANT:
            lines.append("\\midrule")
        cells = [f"\\textbf{{{_tex(text)}}}" if bold else _tex(text) for text, bold in row]
        lines.append(f"{' & '.join(cells)} \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


_TEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", MISSING: "--"}
)


def _tex(text: str) -> str:
    return _minus(text.translate(_TEX))


def _minus(text: str) -> str:
    """A hyphen before a digit is a minus."""
    signs = [
        "$-$" if sign == "-" and after.isdigit() and not before.isalnum() else sign
        for before, sign, after in zip(" " + text, text, text[1:] + " ", strict=False)
    ]
    return "".join(signs)


def as_csv(
    tables: Sequence[StreamTable],
    metrics: Sequence[Metric],
    against: Callable[[StreamTable], str | None],
) -> str:
    """Every number in full, one line a method and stream."""
    parts = ("mean", "sd", "low", "high", "difference", "difference_low", "difference_high")
    heads = [f"{metric.key}_{part}" for metric in metrics for part in parts]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["stream", "backbone", "method", "seeds", "against", *heads])
    for table in tables:
        rival = against(table)
        for method in table.methods:
            numbers: list[float | None] = []
            for metric in metrics:
                found = table.spread(method, metric.key)
                gap = table.difference(method, rival, metric.key) if rival else None
                numbers += [found.mean, found.sd, found.low, found.high] if found else [None] * 4
                numbers += [gap.mean, gap.low, gap.high] if gap else [None] * 3
            seeds = len(table.seeds(method))
            writer.writerow([table.stream, table.backbone, method, seeds, rival or "", *numbers])
        constants = [
            value
            for metric in metrics
            for value in (table.constant.get(metric.key), *[None] * (len(parts) - 1))
        ]
        writer.writerow([table.stream, table.backbone, CONSTANT, "", "", *constants])
    return out.getvalue()
