"""How the pool grew, and the drift that made it grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from sodap.drift import too_few
from sodap.reporting.figures import accuracy as figures
from sodap.reporting.figures.accuracy import BLUE, ORANGE, WIDTH
from sodap.reporting.figures.heat_maps import veil
from sodap.reporting.figures.svg import STYLE
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Cell, Drawing, Prose, Section, Table

MOST_BATCHES = 400
"""Columns of the picture; more batches are averaged."""


def growth_section(run: ShownRun) -> Section | None:
    """None for a method without a pool and without drift."""
    blocks = list(_blocks(run))
    return Section("pool", "How the pool of prompts grows", blocks) if blocks else None


def _blocks(run: ShownRun) -> Iterator[Block]:
    if run.stages and all("pool" in stage.get("ended", {}) for stage in run.stages):
        yield Drawing(
            "pool-growth",
            f"Prompts of {run.title} after each stage",
            figures.pool_growth(run.record),
            "Prompts at the end of each stage. Frozen ones never change again.",
            [pool_table(run)],
        )
    met = stages_with_drift(run)
    if met:
        yield Drawing(
            "drift",
            f"Drift that {run.title} met in each stage",
            figures.drift(run.record),
            "Drift score before each stage, a dot a batch. Above: prompts that were added. "
            + (
                "Grey: most batches of the domain before score like this, without any drift."
                if any(stage["begun"]["drift"]["null_band"] for stage in met)
                else "The domains have too few batches to say how they score without drift."
            ),
            [drift_table(run)],
        )
        yield Drawing(
            "drift-layers",
            f"Drift score of each layer and batch that {run.title} met",
            drift_figure(met),
            "The score of each layer (rows) and batch (columns), the stronger the higher. Orange "
            "lies above the grey band of batches without drift, blue does not. The band is that of "
            "a mean over layers, so a single layer leaves it more often.",
            [layer_table(met)],
        )
    thin = [stage for stage in met if too_few(stage["begun"]["drift"])]
    if thin:
        stages = ", ".join(f"{stage['stage']} {stage['domain']}" for stage in thin)
        counts = too_few(thin[0]["begun"]["drift"])
        yield Prose(
            f"Drift was hardly measured in stage {stages}: there were {counts}, so the score tells "
            f"of the overlap of usage sets alone, and the pool grew by as much as a score near 0 "
            f"asks for. A smaller `drift_batch` makes more batches of the same images, a smaller "
            f"`drift.min_entries` asks for fewer.",
            "warning",
        )
    if met and not any(stage["begun"]["drift"]["added"] for stage in met):
        yield Prose("No domain made the pool grow.", "note")


def stages_with_drift(run: ShownRun) -> list[Mapping[str, Any]]:
    return [stage for stage in run.stages if "drift" in stage.get("begun", {})]


def pool_table(run: ShownRun) -> Table:
    """A pool without a last size has no unused prompts to count."""
    kinds = ("frozen", "active", "unused")
    rows: list[Sequence[str | Cell]] = []
    for stage in run.stages:
        pool = stage["ended"]["pool"]
        counts = [pool["frozen"] + pool["active"], *(pool.get(kind) for kind in kinds)]
        rows.append([f"{stage['stage']} {stage['domain']}", *map(_count, counts)])
    return Table("Prompts at the end of each stage", ["Stage", "In use", *kinds], rows)


def drift_table(run: ShownRun) -> Table:
    threshold = run.record["config"].get("options", {}).get("drift", {}).get("threshold")
    rows: list[Sequence[str | Cell]] = []
    for stage in stages_with_drift(run):
        met, band = stage["begun"]["drift"], stage["begun"]["drift"]["null_band"]
        ends = "too few batches" if band is None else f"{band['low']:.3f} to {band['high']:.3f}"
        rows.append(
            [
                f"{stage['stage']} {stage['domain']}",
                Cell(f"{met['score']:.3f}", met["score"]),
                ends,
                "–" if threshold is None else f"{threshold:g}",
                decision(met, threshold),
            ]
        )
    return Table(
        "Drift and what was decided",
        ["Stage", "Score", "Without drift", "Threshold", "Decision"],
        rows,
    )


def decision(met: Mapping[str, Any], threshold: float | None) -> str:
    if met["added"]:
        return f"{met['added']} prompts added, all others frozen"
    if threshold is not None and met["score"] < threshold:
        return "below the threshold: nothing added"
    return "no room was left: nothing added"


def drift_figure(met: Sequence[Mapping[str, Any]]) -> Figure:
    """Rows are layers, columns batches, stage beside stage."""
    scores = [_narrowed(np.array(stage["begun"]["drift"]["scores"])) for stage in met]
    strongest = max(float(each.max()) for each in scores)
    layers = scores[0].shape[1]
    with rc_context(STYLE):
        figure = Figure(figsize=(max(WIDTH, 1.6 * len(met)), 1.0 + 0.2 * layers))
        widths = [max(len(each), 4) for each in scores]
        panels = figure.subplots(1, len(met), width_ratios=widths, sharey=True, squeeze=False)[0]
        for axes, stage, each in zip(panels, met, scores, strict=True):
            band = stage["begun"]["drift"]["null_band"]
            above = each > (np.inf if band is None else band["high"])
            picture = np.where(
                above.T[..., None],
                veil(each.T, ORANGE, strongest),
                veil(each.T, BLUE, strongest),
            )
            axes.imshow(picture, aspect="auto", interpolation="none")
            axes.set_title(f"{stage['stage']} {stage['domain']}", size=9)
            axes.set_xticks([])
            axes.set_yticks(range(layers))
            axes.tick_params(length=0)
        panels[0].set_ylabel("layer that is watched")
        figure.supxlabel("batches", size=10)
    return figure


def _narrowed(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`[batches, layers]` with at most so many batches that a screen can show them."""
    if len(scores) <= MOST_BATCHES:
        return scores
    return np.stack([part.mean(0) for part in np.array_split(scores, MOST_BATCHES)])


def layer_table(met: Sequence[Mapping[str, Any]]) -> Table:
    """The mean over batches: thousands of numbers would help nobody."""
    means = [np.mean(stage["begun"]["drift"]["scores"], axis=0) for stage in met]
    return Table(
        "Drift score of each layer, mean over batches",
        ["Stage", *(f"layer {layer}" for layer in range(len(means[0])))],
        [
            [f"{stage['stage']} {stage['domain']}", *(Cell(f"{v:.3f}", float(v)) for v in mean)]
            for stage, mean in zip(met, means, strict=True)
        ],
    )


def _count(number: int | None) -> Cell:
    return Cell("–" if number is None else f"{number:,}", number)
