"""What it can do: R and its metrics, recall, confusion, calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sodap.evaluation import Interval, Reliability, metric_intervals, recall_per_class, reliability
from sodap.formats import MISSING, format_difference, format_score
from sodap.reporting.figures import accuracy as figures
from sodap.reporting.figures.accuracy import BLUE, ORANGE, WIDTH
from sodap.reporting.figures.heat_maps import name_cells, number_grid, veil
from sodap.reporting.figures.svg import INK, STYLE
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Cell, Drawing, Facts, Prose, Section, Table
from sodap.reporting.pages.demo_page import METRICS

MOST_PANELS = 12
NO_CALIBRATION = (
    "So there is no calibration to show, and which class was answered there means nothing."
)


def results_section(run: ShownRun) -> Section:
    return Section("results", "What is remembered", list(_blocks(run)))


def _blocks(run: ShownRun) -> Iterator[Block]:
    if not run.learned:
        yield Prose("No stage was finished, so nothing was tested.", "warning")
        return
    yield metrics_table(run)
    yield Facts([(title, meaning) for title, _, _, meaning in METRICS])
    yield Drawing(
        "accuracy-matrix",
        f"R, the accuracy of {run.title}, after each stage on each domain",
        figures.accuracy_matrix(run.record, run.name),
        "R: rows are stages, columns are domains. Read down a column to see what becomes of a "
        "domain while others are learned. Dotted cells belong to domains not learned yet.",
        [matrix_table(run)],
    )
    yield Drawing(
        "forgetting",
        f"Accuracy of each domain over the stages of {run.title}",
        figures.forgetting({run.name: run.record}),
        "A line that falls is forgetting. Dotted: before the domain was learned.",
    )
    if run.record.get("confusions") and run.classes:
        yield Drawing(
            "recall",
            f"Recall of each class in each domain, after the last stage of {run.title}",
            recall_figure(run),
            "Recall after the last stage: the share of a class's test images that is found. "
            "A class that a domain does not have is left clear.",
            [recall_table(run)],
        )
        yield Drawing(
            "confusion",
            f"Confusion of classes in each domain, after the last stage of {run.title}",
            confusion_figure(run),
            "Confusion after the last stage. Rows are what the image shows, columns what was "
            "answered. Blue is right, orange wrong; the numbers are images.",
            list(confusion_tables(run)),
            wide=len(run.classes) > 5,
        )
    lost = without_numbers(run)
    if lost:
        yield Prose(
            f"The answers of {run.name} are no numbers: {lost}. {NO_CALIBRATION}", "warning"
        )
    found = calibration(run) if not lost else []
    if found:
        yield Drawing(
            "calibration",
            f"Calibration of {run.title} on each domain, after the last stage",
            calibration_figure(run, found),
            "Bars: the share of right answers among those of equal confidence. A bar below the "
            "line claims more than it knows. Wide bars hold more answers. ECE is the mean distance "
            "from the line.",
            [calibration_table(run)],
            wide=len(run.domains) > 3,
        )


# ------------------------------------------------------------------ R and metrics


def metrics_table(run: ShownRun) -> Table:
    """Every metric with the interval that the test images allow."""
    outcomes = run.outcomes()
    ends = metric_intervals(outcomes) if outcomes is not None else {}
    rows: list[Sequence[str | Cell]] = []
    for title, measure, key, _ in METRICS:
        value = run.record["metrics"][measure][key]
        known = ends.get(key) if measure == "accuracy" else None
        rows.append([title, Cell(format_score(value), value, bold=True), Cell(_interval(known))])
    about = (
        "The interval comes from drawing the test images anew, each with its outcomes of all "
        "stages. It speaks of other images, not of other seeds."
        if ends
        else "The run left no answers to single images, so there are no intervals."
    )
    return Table(about, ["Metric", "Value", "95 % interval"], rows)


def _interval(ends: Interval | None) -> str:
    return MISSING if ends is None else f"{format_score(ends.low)} to {format_score(ends.high)}"


def matrix_table(run: ShownRun) -> Table:
    R = run.record["R"]["accuracy"]
    return Table(
        "Accuracy; in italics: not learned yet",
        ["After", *run.domains],
        [
            [
                run.domains[stage],
                *(Cell(format_score(v), v, faint=domain > stage) for domain, v in enumerate(row)),
            ]
            for stage, row in enumerate(R)
        ],
    )


# ------------------------------------------------------------------ classes


def recalls(run: ShownRun) -> list[list[float | None]]:
    """`[domains][classes]` after the last stage."""
    return [recall_per_class(np.array(matrix)) for matrix in run.record["confusions"][-1]]


def recall_figure(run: ShownRun) -> Figure:
    values = np.array(recalls(run), np.float64)  # None becomes NaN
    with rc_context(STYLE):
        high = 0.9 + 0.32 * len(run.domains)
        figure = Figure(figsize=(max(WIDTH, 1.5 + 0.42 * len(run.classes)), high))
        number_grid(figure.add_subplot(), values, run.domains, run.classes)
    return figure


def recall_table(run: ShownRun) -> Table:
    return Table(
        "Recall after the last stage",
        ["Domain", *run.classes],
        [
            [name, *(Cell(format_score(value), value) for value in row)]
            for name, row in zip(run.domains, recalls(run), strict=True)
        ],
    )


def confusion_figure(run: ShownRun) -> Figure:
    tables = [np.array(matrix) for matrix in run.record["confusions"][-1][:MOST_PANELS]]
    across = 2 if len(tables) > 1 else 1
    down = -(-len(tables) // across)
    side = max(2.2, 0.9 + 0.3 * len(run.classes))
    with rc_context(STYLE):
        figure = Figure(figsize=(side * across + 0.6, (side * 0.9 + 0.3) * down))
        for place, (name, table) in enumerate(zip(run.domains, tables, strict=False), 1):
            axes = figure.add_subplot(down, across, place)
            axes.set_title(name)
            share = table / np.maximum(table.sum(1, keepdims=True), 1)
            _confusion(axes, table, share, run.classes)
    return figure


def _confusion(
    axes: Axes, table: NDArray[np.int64], share: NDArray[np.float64], names: Sequence[str]
) -> None:
    """Right answers in blue, wrong ones in orange; what did not happen stays clear."""
    right = np.eye(len(table), dtype=bool)[..., None]
    picture = np.where(right, veil(share, BLUE, 1.0), veil(share, ORANGE, 1.0))
    axes.imshow(picture, interpolation="none", aspect="auto")
    name_cells(axes, names, names)
    for edge in range(len(table) + 1):
        axes.axhline(edge - 0.5, color=INK, alpha=0.12, lw=0.5)
        axes.axvline(edge - 0.5, color=INK, alpha=0.12, lw=0.5)
    if len(table) <= 10:
        for (row, column), count in np.ndenumerate(table):
            if count:
                axes.text(column, row, str(count), ha="center", va="center", size=7)


def confusion_tables(run: ShownRun) -> Iterator[Table]:
    for name, matrix in zip(run.domains, run.record["confusions"][-1], strict=True):
        yield Table(
            f"{name}: rows are the truth, columns the answers",
            ["Truth", *run.classes],
            [
                [label, *(Cell(str(count), count, faint=count == 0) for count in row)]
                for label, row in zip(run.classes, matrix, strict=True)
            ],
        )


# ------------------------------------------------------------------ calibration


def without_numbers(run: ShownRun) -> str:
    """After which stages answers on which domains were NaN, in words; empty where none was."""
    told = []
    for left in run.evidence:
        names = [
            name
            for name, sure in zip(run.domains, left.confidence, strict=False)
            if bool(sure.isnan().any())
        ]
        if names:
            told.append(f"after stage {left.number} on {', '.join(names)}")
    return "; ".join(told)


def calibration(run: ShownRun, stage: int = -1) -> list[Reliability]:
    """Of each domain, after a stage; empty where no answers were left."""
    if not run.evidence or (stage == -1 and len(run.evidence) < len(run.stages)):
        return []
    left = run.evidence[stage]
    return [
        reliability(confidence.numpy(), right.numpy())
        for confidence, right in zip(left.confidence, left.right, strict=True)
    ]


def calibration_figure(run: ShownRun, found: Sequence[Reliability]) -> Figure:
    found = found[:MOST_PANELS]
    across = min(len(found), 4 if len(found) > 3 else 3)
    down = -(-len(found) // across)
    with rc_context(STYLE):
        figure = Figure(figsize=(max(WIDTH, 1.9 * across), 2.25 * down))
        for place, (name, each) in enumerate(zip(run.domains, found, strict=False), 1):
            axes = figure.add_subplot(down, across, place)
            # On a line of its own: a long name is shortened, the number never.
            axes.set_title(f"{name}\nECE {each.error:.3f}", size=9)
            bins = len(each.counts)
            some = each.counts > 0
            width = (0.35 + 0.65 * each.counts[some] / each.counts.max()) / bins
            axes.bar(each.confidence[some], each.accuracy[some], width, color=BLUE, alpha=0.85)
            axes.plot([0, 1], [0, 1], color=ORANGE, lw=1.2)
            axes.set_xlim(0, 1)
            axes.set_ylim(0, 1)
            axes.set_xticks([0, 0.5, 1])
            axes.set_yticks([0, 0.5, 1])
            axes.grid(axis="y", color=INK, alpha=0.15)
        figure.supxlabel("confidence", size=10)
        figure.supylabel("right answers", size=10)
    return figure


def calibration_table(run: ShownRun) -> Table:
    """ECE after every stage, and the direction of the error after the last."""
    per_stage = [calibration(run, stage) for stage in range(len(run.stages))]
    rows: list[Sequence[str | Cell]] = [
        [run.domains[stage], *(Cell(f"{each.error:.3f}", each.error) for each in found)]
        for stage, found in enumerate(per_stage)
    ]
    beyond = [each.overconfidence for each in per_stage[-1]]
    rows.append(["too sure by", *(Cell(format_difference(value), value) for value in beyond)])
    return Table(
        "Expected calibration error (15 ranges) after each stage; the last row: mean confidence "
        "minus accuracy after the last stage, above 0 for too much confidence",
        ["After", *run.domains],
        rows,
    )
