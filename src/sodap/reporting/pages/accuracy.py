"""Section on accuracy: R and its metrics, recall, confusion, calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sodap.evaluation import (
    KIND,
    MEANINGS,
    Reliability,
    metric_intervals,
    recall_per_class,
    reliability,
)
from sodap.formats import MISSING, format_score
from sodap.reporting.figures import accuracy as figures
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, Definitions, FigureBlock, Paragraph, Section
from sodap.reporting.tables.metrics import SCORES
from sodap.reporting.tables.stream_table import constant_scores
from sodap.reporting.tables.table import (
    Cell,
    Row,
    Table,
    change_cell,
    count_cell,
    number_cell,
    number_table,
    score_cell,
)


def accuracy_section(run: LoadedRun) -> Section:
    return Section("accuracy", "Accuracy and forgetting", list(_blocks(run)))


def _blocks(run: LoadedRun) -> Iterator[Block]:
    if not run.stages:
        yield Paragraph("No stage is finished, so nothing was tested.", "warning")
        return
    yield metrics_table(run)
    yield Definitions(list(MEANINGS.items()))
    yield FigureBlock(
        "accuracy-matrix",
        f"R, the accuracy of {run.title}, after each stage on each domain",
        figures.accuracy_matrix(run.record.R.accuracy, run.domains, run.name),
        "R, the accuracy after each stage (rows) on each domain (columns). Read down a column to "
        "see how a domain changes while others are learned. Dotted cells: not learned yet.",
        [matrix_table(run)],
    )
    yield FigureBlock(
        "forgetting",
        f"Accuracy of each domain over the stages of {run.title}",
        figures.forgetting({run.name: run.record.R.accuracy}, run.domains),
        "A falling line is forgetting. Dotted: before the domain was learned.",
    )
    if run.record.confusions and run.classes:
        yield FigureBlock(
            "recall",
            f"Recall of each class in each domain, after the last stage of {run.title}",
            figures.recall(recalls(run), run.domains, run.classes),
            "Recall after the last stage. A class that a domain does not have is left clear.",
            [recall_table(run)],
        )
        matrices = [np.array(matrix) for matrix in run.record.confusions[-1]]
        yield FigureBlock(
            "confusion",
            f"Confusion of classes in each domain, after the last stage of {run.title}",
            figures.confusion(matrices, run.domains, run.classes),
            "Confusion after the last stage: true classes (rows), predictions (columns) and the "
            "number of images. Blue is right, orange is wrong.",
            list(confusion_tables(run)),
            wide=len(run.classes) > 5,
        )
    broken = nan_predictions(run)
    if broken:
        yield Paragraph(
            f"{run.name} predicts NaN {broken}. The predicted classes there mean nothing, and "
            f"calibration is not shown.",
            "warning",
        )
    elif found := calibration(run):
        yield FigureBlock(
            "calibration",
            f"Calibration of {run.title} on each domain, after the last stage",
            figures.calibration(found, run.domains),
            "Above: accuracy of predictions with similar confidence; a dot below the diagonal is "
            "overconfident, and a dot at 0 is a bin without a right answer. Below: number of "
            "images in each bin, on a logarithmic axis. ECE is the mean distance to the diagonal, "
            "weighted by images.",
            [calibration_table(run), *bin_tables(run, found)],
            wide=len(run.domains) > 3,
        )


def metrics_table(run: LoadedRun) -> Table:
    """All metrics with their intervals over test images, beside those of the constant answer."""
    counts = [sum(domain.counts.test) for domain in run.record.stream.domains]
    intervals = metric_intervals(run.record.R.accuracy, counts, run.outcomes())
    constant, answer = constant_scores(run.record)
    rows: list[Row] = []
    for metric in SCORES:
        ends = intervals.get(metric.key)
        text = f"{format_score(ends.low)} to {format_score(ends.high)}" if ends else MISSING
        value = score_cell(metric.of(run.record), bold=True)
        rows.append([metric.title, value, Cell(text), score_cell(constant[metric.key], faint=True)])
    caption = (
        f"Metrics, with {KIND}. They say nothing about other seeds, and are too narrow if a "
        f"patient has several images."
    )
    if run.outcomes() is None:
        caption += " BWT has none, since the run has no predictions for single images."
    heads = ["Metric", "Value", "95 % interval", f"Always answering '{answer}'"]
    return Table(caption, heads, rows)


def matrix_table(run: LoadedRun, *, shaded: bool = False) -> Table:
    """R as a table; `shaded` cells are coloured like a heat map."""
    rows: list[Row] = []
    for stage, values in enumerate(run.record.R.accuracy):
        cells = [
            Cell(
                format_score(value),
                value,
                faint=domain > stage,
                shade=value**3 if shaded and domain <= stage else None,  # more contrast near 1
            )
            for domain, value in enumerate(values)
        ]
        rows.append([run.domains[stage], *cells])
    return Table(
        "Accuracy after each stage; in italics: not learned yet", ["After", *run.domains], rows
    )


def recalls(run: LoadedRun) -> list[list[float | None]]:
    """Recall `[domains][classes]` after the last stage."""
    return [recall_per_class(np.array(matrix)) for matrix in run.record.confusions[-1]]


def recall_table(run: LoadedRun) -> Table:
    heads = ["Domain", *run.classes]
    return number_table("Recall after the last stage", heads, run.domains, recalls(run))


def confusion_tables(run: LoadedRun) -> Iterator[Table]:
    for name, matrix in zip(run.domains, run.record.confusions[-1], strict=True):
        caption = f"{name}: true classes (rows) and predictions (columns)"
        yield number_table(caption, ["Class", *run.classes], run.classes, matrix, count_cell)


def nan_predictions(run: LoadedRun) -> str:
    """Stages and domains with NaN predictions, in words; empty if there are none."""
    found = []
    for stage in run.evidence:
        names = [
            name
            for name, confidence in zip(run.domains, stage.confidence, strict=False)
            if bool(confidence.isnan().any())
        ]
        if names:
            found.append(f"after stage {stage.number} on {', '.join(names)}")
    return "; ".join(found)


def calibration(run: LoadedRun, stage: int = -1) -> list[Reliability]:
    """Reliability on each domain after a stage; empty if there are no predictions."""
    if not run.evidence or (stage == -1 and len(run.evidence) < len(run.stages)):
        return []
    found = run.evidence[stage]
    return [
        reliability(confidence.numpy(), right.numpy())
        for confidence, right in zip(found.confidence, found.correct, strict=True)
    ]


def bin_tables(run: LoadedRun, found: Sequence[Reliability]) -> Iterator[Table]:
    """Images, confidence and accuracy of every bin with images."""
    for name, each in zip(run.domains, found, strict=True):
        bins = len(each.counts)
        rows: list[Row] = [
            [
                f"{place / bins:.2f} to {(place + 1) / bins:.2f}",
                number_cell(int(each.counts[place])),
                score_cell(float(each.confidence[place])),
                score_cell(float(each.accuracy[place])),
            ]
            for place in range(bins)
            if each.counts[place]
        ]
        heads = ["Confidence", "Images", "Mean confidence", "Accuracy"]
        yield Table(f"{name}: bins of confidence after the last stage", heads, rows)


def calibration_table(run: LoadedRun) -> Table:
    """ECE after every stage, and the overconfidence after the last."""
    per_stage = [calibration(run, stage) for stage in range(len(run.stages))]
    rows: list[Row] = [
        [run.domains[stage], *(score_cell(each.error) for each in found)]
        for stage, found in enumerate(per_stage)
    ]
    rows.append(["overconfidence", *(change_cell(each.overconfidence) for each in per_stage[-1])])
    return Table(
        "Expected calibration error (15 bins) after each stage. Last row: mean confidence minus "
        "accuracy after the last stage",
        ["After", *run.domains],
        rows,
    )
