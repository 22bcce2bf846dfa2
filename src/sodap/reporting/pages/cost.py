"""Section on cost: parameters, storage, time, GPU memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sodap.formats import MISSING, format_bytes, format_duration, plural
from sodap.reporting.figures.training import stage_times
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, FigureBlock, Paragraph, Section
from sodap.reporting.tables.table import Cell, Row, Table, number_cell
from sodap.runs.record import StoredAsset


def cost_section(run: LoadedRun) -> Section:
    return Section("cost", "Cost", list(_blocks(run)))


def _blocks(run: LoadedRun) -> Iterator[Block]:
    if not run.stages:
        yield Paragraph("No stage is finished.", "note")
        return
    yield cost_table(run)
    yield FigureBlock(
        "time",
        f"Seconds of each stage of {run.title}",
        stage_times([f"{stage.stage} {stage.domain}" for stage in run.stages], stage_seconds(run)),
        "Training includes validation. The rest is passes over the new images before and after "
        "training, and writing files.",
    )
    if run.stages[-1].stored is not None:
        yield stored_table(run.stages[-1].stored)


def stage_seconds(run: LoadedRun) -> dict[str, list[float]]:
    """Seconds of each stage by kind: `training`, `testing`, `rest`."""
    found: dict[str, list[float]] = {"training": [], "testing": [], "rest": []}
    for stage in run.stages:
        training = sum(row.seconds for row in run.log if row.stage == stage.stage)
        testing = stage.evaluation.seconds if stage.evaluation else 0.0
        rest = max(0.0, stage.seconds - training - testing)
        for kind, seconds in zip(found, (training, testing, rest), strict=True):
            found[kind].append(seconds)
    return found


def cost_table(run: LoadedRun) -> Table:
    rows: list[Row] = []
    for stage in run.stages:
        speeds = [row.images_per_second for row in run.log if row.stage == stage.stage]
        tested = stage.evaluation
        peak = stage.peak_gpu_bytes
        rows.append(
            [
                f"{stage.stage} {stage.domain}",
                number_cell(stage.trainable_parameters),
                Cell(format_bytes(stage.stored_bytes), stage.stored_bytes),
                Cell(format_duration(stage.seconds), stage.seconds),
                number_cell(float(np.mean(speeds)) if speeds else None, ",.0f"),
                number_cell(
                    tested.images / tested.seconds if tested and tested.seconds else None, ",.0f"
                ),
                Cell(MISSING if peak is None else format_bytes(peak), peak),
            ]
        )
    return Table(
        "Cost of each stage. Stored: everything that is kept about past images",
        [
            "Stage",
            "Trained parameters",
            "Stored",
            "Time",
            "Training images/s",
            "Test images/s",
            "Peak GPU memory",
        ],
        rows,
    )


def stored_table(assets: Sequence[StoredAsset]) -> Table:
    images = sum(asset.images for asset in assets)
    total = sum(asset.bytes for asset in assets)
    rows: list[Row] = [
        [asset.name, asset.kind, number_cell(asset.bytes), number_cell(asset.images)]
        for asset in assets
    ]
    return Table(
        f"Stored about past images after the last stage: {format_bytes(total)}, from which "
        f"{plural(images, 'image')} can be recovered",
        ["Name", "Kind", "Bytes", "Images"],
        rows or [["nothing", "", "0", "0"]],
    )
