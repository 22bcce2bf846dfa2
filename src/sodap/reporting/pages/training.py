"""Section on training: losses and their weights, learning rate, early stopping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sodap.formats import plural
from sodap.learning.trace import Trace
from sodap.reporting.figures import training as figures
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, Definitions, FigureBlock, Paragraph, Section
from sodap.reporting.tables.table import Row, Table, number_cell, score_cell
from sodap.runs.record import EpochRow

MAX_POINTS = 600
"""Most points of a line; more than a figure has pixels only make the page larger."""

LOSSES = {
    "ce": "cross-entropy on the new images",
    "div": "diversity: prompts that are used together should differ",
    "norm": "norm: prompts should stay small",
    "real": "distillation: predict as the model of the stage before, on new images",
    "pseudo": "distillation on features drawn from the statistics of old classes",
}
"""Meaning of the loss terms of the built-in methods."""


def training_section(run: LoadedRun) -> Section:
    return Section("training", "Training", list(_blocks(run)))


def _blocks(run: LoadedRun) -> Iterator[Block]:
    if not run.log:
        if not run.stages:
            yield Paragraph("No epoch is finished.", "warning")
        elif any(stage.epochs for stage in run.stages):
            yield Paragraph("There is no log of the epochs.", "note")
        else:
            yield Paragraph("The method is solved in closed form, without epochs.")
        return
    traces, no_steps = run.steps
    if no_steps:
        yield Paragraph(f"No figure of losses: {no_steps}.", "note")
        yield epochs_table(run.log)
    else:
        yield losses_figure(run, traces)
    yield FigureBlock(
        "learning-rate",
        f"Learning rate and validation score of {run.title} in each epoch",
        figures.schedule(run.log, best_epochs(run)),
        "Above: macro-F1 on the validation images of the current domain; the best epoch, which is "
        "kept, has a ring. Below: learning rate, which restarts at each stage.",
        [stops_table(run)],
    )
    terms = dict.fromkeys(term for row in run.log for term in row.losses)
    if known := [(term, LOSSES[term]) for term in terms if term in LOSSES]:
        yield Definitions(known)


def losses_figure(run: LoadedRun, traces: Mapping[int, Trace]) -> FigureBlock:
    """Losses and weights at every step, as in the paper's Fig. 4 c and d."""
    weights = ""
    if any(trace.weights for trace in traces.values()):
        weights = f", and the learned weights below{without_weights(run.log)}"
    steps = sum(map(len, traces.values()))
    size = -(-steps // MAX_POINTS)
    points = f", {size} steps per point" if size > 1 else ""
    return FigureBlock(
        "losses",
        f"Losses of {run.title} at each step",
        figures.losses(run.log, traces, size),
        f"Losses at {plural(steps, 'step')}{points}{weights}. Dots are means of epochs. The folder "
        f"`steps` of the run has every single step.",
        [epochs_table(run.log)],
    )


def without_weights(rows: Sequence[EpochRow]) -> str:
    """Stages without learned weights, in brackets; empty if all stages have weights."""
    weighed = {row.stage for row in rows if row.weights}
    found = [stage for stage in dict.fromkeys(row.stage for row in rows) if stage not in weighed]
    if not found:
        return ""
    return f" (not in {'stage' if len(found) == 1 else 'stages'} {', '.join(map(str, found))})"


def best_epochs(run: LoadedRun) -> list[tuple[int, float]]:
    """Best epoch of each finished stage, counted over all stages, and its validation score."""
    best = {stage.stage: stage.best_epoch for stage in run.stages}
    return [
        (place, row.val_macro_f1)
        for place, row in enumerate(run.log, 1)
        if best.get(row.stage) == row.epoch
    ]


def epochs_table(rows: Sequence[EpochRow]) -> Table:
    losses = list(dict.fromkeys(term for row in rows for term in row.losses))
    weights = list(dict.fromkeys(term for row in rows for term in row.weights))
    return Table(
        "Every epoch",
        [
            "Stage, epoch",
            *losses,
            *(f"weight of {term}" for term in weights),
            "learning rate",
            "val macro-F1",
        ],
        [
            [
                f"{row.stage} {row.domain}, {row.epoch}",
                *(number_cell(row.losses.get(term), ".4g") for term in losses),
                *(number_cell(row.weights.get(term), ".3g") for term in weights),
                number_cell(row.lr, ".6g"),
                number_cell(row.val_macro_f1, ".3g"),
            ]
            for row in rows
        ],
    )


def stops_table(run: LoadedRun) -> Table:
    most = run.record.config.training.epochs
    rows: list[Row] = [
        [
            f"{stage.stage} {stage.domain}",
            number_cell(stage.epochs),
            number_cell(stage.best_epoch),
            score_cell(stage.best_val_macro_f1),
            stop_reason(stage.epochs, most),
        ]
        for stage in run.stages
    ]
    return Table(
        "When each stage stopped",
        ["Stage", "Epochs", "Best epoch", "Best validation macro-F1", "Reason"],
        rows,
    )


def stop_reason(epochs: int, most: int) -> str:
    if not epochs:
        return "closed form"
    return "all epochs done" if epochs >= most else "early stopping"
