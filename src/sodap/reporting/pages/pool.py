"""Section on the prompt pool: its growth, and the drift that causes it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sodap.formats import plural
from sodap.reporting.figures import prompts as figures
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, FigureBlock, Paragraph, Section
from sodap.reporting.tables.table import Row, Table, number_cell, number_table, score_cell
from sodap.runs.record import DriftInfo


def pool_section(run: LoadedRun) -> Section | None:
    """Section on the pool and drift; None for a method without them."""
    blocks = list(_blocks(run))
    return Section("pool", "Growth of the prompt pool", blocks) if blocks else None


def _blocks(run: LoadedRun) -> Iterator[Block]:
    if run.stages and all(stage.ended.pool is not None for stage in run.stages):
        yield FigureBlock(
            "pool-growth",
            f"Prompts of {run.title} after each stage",
            figures.pool_growth(run.stages),
            "Prompts at the end of each stage. Frozen prompts do not change any more.",
            [pool_table(run)],
        )
    measured = figures.measured_drift(run.stages)
    if not measured:
        return
    band = (
        "Grey: range of most batches of the domain before, which have no drift."
        if any(found.null_band for _, found in measured)
        else "The domains have too few batches for a range without drift."
    )
    yield FigureBlock(
        "drift",
        f"Drift of each stage of {run.title}",
        figures.drift(run.stages),
        f"Drift score at the start of each stage; one dot per batch. Above: added prompts. {band}",
        [drift_table(run)],
    )
    yield FigureBlock(
        "drift-layers",
        f"Drift score of each layer and batch of {run.title}",
        figures.drift_by_layer(run.stages),
        "Drift score of each layer (rows) and batch (columns); stronger colours are higher. Orange "
        "is above the grey range, blue is not. The range belongs to the mean over layers, so "
        "single layers leave it more often.",
        [layer_table(run)],
    )
    unsure = [(stage, found.too_few) for stage, found in measured if found.too_few]
    if unsure:
        stages = ", ".join(f"{stage.stage} {stage.domain}" for stage, _ in unsure)
        yield Paragraph(
            f"The drift score is not reliable in stage {stages}: there were {unsure[0][1]}. Only "
            f"the overlap of used prompts counts then, and the pool grows as for a score near 0. A "
            f"smaller `drift_batch` gives more batches, a smaller `drift.min_entries` requires "
            f"fewer.",
            "warning",
        )
    if not any(found.added for _, found in measured):
        yield Paragraph("No prompts were added for any domain.", "note")


def pool_table(run: LoadedRun) -> Table:
    kinds = ("frozen", "active", "unused")
    rows: list[Row] = []
    for stage in run.stages:
        pool = stage.ended.pool
        assert pool is not None
        counts = [pool.frozen + pool.active, *(getattr(pool, kind) for kind in kinds)]
        rows.append([f"{stage.stage} {stage.domain}", *map(number_cell, counts)])
    return Table("Prompts at the end of each stage", ["Stage", "In use", *kinds], rows)


def drift_table(run: LoadedRun) -> Table:
    threshold = run.record.config.options.get("drift", {}).get("threshold")
    rows: list[Row] = []
    for stage, found in figures.measured_drift(run.stages):
        band = found.null_band
        rows.append(
            [
                f"{stage.stage} {stage.domain}",
                score_cell(found.score),
                "too few batches" if band is None else f"{band.low:.3f} to {band.high:.3f}",
                number_cell(threshold, "g"),
                decision(found, threshold),
            ]
        )
    return Table(
        "Drift and the decision that followed",
        ["Stage", "Score", "Without drift", "Threshold", "Decision"],
        rows,
    )


def decision(found: DriftInfo, threshold: float | None) -> str:
    if found.added:
        return f"{plural(found.added, 'prompt')} added, all others frozen"
    if threshold is not None and found.score < threshold:
        return "below the threshold: none added"
    return "pool full: none added"


def layer_table(run: LoadedRun) -> Table:
    measured = figures.measured_drift(run.stages)
    means = [np.mean(found.scores, axis=0).tolist() for _, found in measured]
    return number_table(
        "Drift score of each layer, mean over batches",
        ["Stage", *(f"layer {layer}" for layer in range(len(means[0])))],
        [f"{stage.stage} {stage.domain}" for stage, _ in measured],
        means,
    )
