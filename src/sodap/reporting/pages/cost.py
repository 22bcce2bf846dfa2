"""What it cost: parameters, bytes, time, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from sodap.formats import format_bytes, format_duration, plural
from sodap.reporting.figures.accuracy import BLUE, GREY, ORANGE, WIDTH
from sodap.reporting.figures.svg import STYLE
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Cell, Drawing, Prose, Section, Table


def cost_section(run: ShownRun) -> Section:
    return Section("cost", "What it cost", list(_blocks(run)))


def _blocks(run: ShownRun) -> Iterator[Block]:
    if not run.stages:
        yield Prose("No stage was finished.", "note")
        return
    yield cost_table(run)
    yield Drawing(
        "time",
        f"Seconds of each stage of {run.title}",
        time_figure(run),
        "Training is the time of all epochs with their validation; the rest is looking at the new "
        "images before and after, and writing.",
    )
    assets = run.stages[-1].get("stored")
    if assets is not None:
        yield stored_table(assets)


def stored_bytes(stage: Mapping[str, Any]) -> int:
    if "stored_bytes" in stage:  # kept results hold the sum alone
        return int(stage["stored_bytes"])
    return sum(asset["bytes"] for asset in stage["stored"])


def stage_seconds(run: ShownRun) -> list[dict[str, float]]:
    """Where the time of each stage went: `training`, `testing`, `rest`."""
    found = []
    for stage in run.stages:
        training = sum(row.get("seconds", 0.0) for row in run.log if row["stage"] == stage["stage"])
        testing = stage.get("evaluation", {}).get("seconds", 0.0)
        rest = max(0.0, stage["seconds"] - training - testing)
        found.append({"training": training, "testing": testing, "rest": rest})
    return found


def cost_table(run: ShownRun) -> Table:
    rows: list[Sequence[str | Cell]] = []
    for stage in run.stages:
        speeds = [
            row["images_per_second"]
            for row in run.log
            if row["stage"] == stage["stage"] and "images_per_second" in row
        ]
        tested = stage.get("evaluation") or {}
        asked = tested["images"] / tested["seconds"] if tested.get("seconds") else None
        peak = stage.get("peak_gpu_bytes")
        stored = stored_bytes(stage)
        rows.append(
            [
                f"{stage['stage']} {stage['domain']}",
                Cell(f"{stage['trainable_parameters']:,}", stage["trainable_parameters"]),
                Cell(format_bytes(stored), stored),
                Cell(format_duration(stage["seconds"]), stage["seconds"]),
                _speed(float(np.mean(speeds)) if speeds else None),
                _speed(asked),
                Cell("–" if peak is None else format_bytes(peak), peak),
            ]
        )
    return Table(
        "Each stage. Stored: all that is kept about past images",
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


def time_figure(run: ShownRun) -> Figure:
    times = stage_seconds(run)
    names = [f"{stage['stage']} {stage['domain']}" for stage in run.stages]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.34 * len(times)))
        axes = figure.add_subplot()
        left = np.zeros(len(times))
        for kind, colour in (("training", BLUE), ("testing", ORANGE), ("rest", GREY)):
            widths = np.array([each[kind] for each in times])
            axes.barh(range(len(times)), widths, 0.62, left, color=colour, label=kind)
            left += widths
        axes.set_yticks(range(len(times)), labels=names)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("seconds")
        figure.legend(loc="outside upper center", ncols=3)
    return figure


def stored_table(assets: Sequence[Mapping[str, Any]]) -> Table:
    images = sum(asset["images"] for asset in assets)
    total = sum(asset["bytes"] for asset in assets)
    return Table(
        f"What is kept of past images after the last stage: {format_bytes(total)}, "
        f"{plural(images, 'image')} that could be seen in it",
        ["Name", "Kind", "Bytes", "Images"],
        [
            [
                asset["name"],
                asset["kind"],
                Cell(f"{asset['bytes']:,}", asset["bytes"]),
                Cell(str(asset["images"]), asset["images"]),
            ]
            for asset in assets
        ]
        or [["nothing", "", "0", "0"]],
    )


def _speed(value: float | None) -> Cell:
    return Cell("–" if value is None else f"{value:,.0f}", value)
