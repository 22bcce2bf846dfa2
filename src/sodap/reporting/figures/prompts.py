"""Figures of prompts: growth of the pool, drift, routing, similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from sodap.reporting.figures.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    WIDTH,
    legend_above,
    panels,
    round_values,
    styled,
    tint,
    x_labels,
    y_ticks,
)
from sodap.runs.evidence import StageEvidence
from sodap.runs.record import DriftInfo, StageRecord

MAX_BATCHES = 400
"""Most columns of a drift heat map; more batches are averaged."""
LAYER_GAP = 2
"""Clear rows between two layers of a heat map."""


def frozen_prompts(stage: StageEvidence) -> int:
    """Number of frozen prompts, which come first."""
    return stage.pool.frozen if stage.pool is not None else 0


@styled
def pool_growth(stages: Sequence[StageRecord]) -> Figure:
    """Frozen and active prompts at the end of each stage."""
    figure = Figure(figsize=(WIDTH, 3.2))
    axes = figure.add_subplot()
    below = np.zeros(len(stages))
    pools = [stage.ended.pool for stage in stages]
    for kind, colour in (("frozen", GREY), ("active", BLUE)):
        counts = np.array([getattr(pool, kind) for pool in pools])
        bars = axes.bar(range(len(stages)), counts, 0.62, below, color=colour, label=kind)
        written = [str(count) if count else "" for count in counts]
        axes.bar_label(bars, written, label_type="center", color="white", weight="bold")
        below += counts
    axes.set_ylabel("prompts")
    _stage_axis(axes, stages)
    legend_above(figure, 2)
    return figure


def measured_drift(stages: Sequence[StageRecord]) -> list[tuple[StageRecord, DriftInfo]]:
    """Stages that measured drift, with their measurement."""
    return [(stage, stage.begun.drift) for stage in stages if stage.begun.drift is not None]


@styled
def drift(stages: Sequence[StageRecord]) -> Figure:
    """Drift score of each stage and batch, with the range of scores without drift."""
    measured = measured_drift(stages)
    highest = 1.0
    figure = Figure(figsize=(WIDTH, 3.2))
    axes = figure.add_subplot()
    for place, (_, found) in enumerate(measured):
        batches = np.mean(found.scores, axis=1)
        left, right = place - 0.36, place + 0.36
        if found.null_band is not None:
            low, high = found.null_band.low, found.null_band.high
            axes.fill_between(
                [left, right], low, high, color=GREY, alpha=0.4, lw=0, label="no drift"
            )
            highest = max(highest, high)
        order = np.linspace(left + 0.06, right - 0.06, len(batches))
        axes.plot(order, batches, "o", color=BLUE, ms=3.5, alpha=0.8, label="one batch")
        axes.plot([left, right], [found.score] * 2, color=ORANGE, lw=2, label="stage mean")
        highest = max(highest, float(np.max(batches)))
        above = axes.get_xaxis_transform()
        axes.text(place, 1.02, f"+{found.added}", ha="center", transform=above)
    axes.text(-0.02, 1.02, "prompts", ha="right", transform=axes.transAxes)
    # Linear up to 1, where scores without drift lie, and logarithmic above: drift has no bound.
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, highest * 1.15)
    y_ticks(axes, [0, *round_values(0.5, highest * 1.15)])
    axes.set_ylabel("drift score")
    _stage_axis(axes, [stage for stage, _ in measured])
    legend_above(figure, 3)
    return figure


def _stage_axis(axes: Axes, stages: Sequence[StageRecord]) -> None:
    names = [stage.domain for stage in stages]
    if len(names) * max(map(len, names)) <= 55:  # about as many letters as fit in a line
        numbered = [f"{stage.stage}\n{stage.domain}" for stage in stages]
        x_labels(axes, range(len(names)), numbered, slant=0)
    else:
        x_labels(axes, range(len(names)), names, slant=30, top=False)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="x", length=0)


@styled
def drift_by_layer(stages: Sequence[StageRecord]) -> Figure:
    """Drift score of each layer (rows) and batch (columns), one panel per stage."""
    measured = measured_drift(stages)
    scores = [_averaged(np.array(found.scores)) for _, found in measured]
    strongest = max(float(each.max()) for each in scores)
    layers = scores[0].shape[1]
    figure = Figure(figsize=(max(WIDTH, 1.6 * len(measured)), 1.0 + 0.2 * layers))
    widths = [max(len(each), 4) for each in scores]
    all_axes = figure.subplots(1, len(scores), width_ratios=widths, sharey=True, squeeze=False)[0]
    for axes, (stage, found), each in zip(all_axes, measured, scores, strict=True):
        above = each > (np.inf if found.null_band is None else found.null_band.high)
        picture = np.where(
            above.T[..., None], tint(each.T, ORANGE, strongest), tint(each.T, BLUE, strongest)
        )
        axes.imshow(picture, aspect="auto", interpolation="none")
        axes.set_title(f"{stage.stage} {stage.domain}", size=9)
        axes.set_xticks([])
        axes.set_yticks(range(layers))
        axes.tick_params(length=0)
    all_axes[0].set_ylabel("monitored layer")
    figure.supxlabel("batches", size=10)
    return figure


def _averaged(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores `[batches, layers]`, averaged to at most `MAX_BATCHES` rows."""
    if len(scores) <= MAX_BATCHES:
        return scores
    return np.stack([part.mean(0) for part in np.array_split(scores, MAX_BATCHES)])


# ------------------------------------------------------------------ routing


@styled
def selections(weights: Tensor, frozen: int) -> Figure:
    """Weights `[K, L, N]` of prompts for single images: a heat map per layer, in two columns."""
    values = weights.double().numpy()
    images, layers, prompts = values.shape
    half = -(-layers // 2)
    strongest = float(np.quantile(values[values > 0], 0.99)) if (values > 0).any() else 1.0
    height = 0.7 + half * min(0.9, max(0.35, 0.035 * images))
    figure = Figure(figsize=(9.0, height))
    figure.set_layout_engine("none")
    below, above = 0.5 / height, 0.1 / height
    for column in range(2):
        axes = figure.add_axes((0.06 + column * 0.5, below, 0.43, 1 - below - above))
        own = range(column * half, min(layers, (column + 1) * half))
        step = images + LAYER_GAP
        picture = np.zeros((half * step - LAYER_GAP, prompts, 4))
        for place, layer in enumerate(own):
            rows = slice(place * step, place * step + images)
            parts = [
                tint(values[:, layer, :frozen], GREY, strongest),
                tint(values[:, layer, frozen:], BLUE, strongest),
            ]
            picture[rows] = np.concatenate(parts, axis=1)
        axes.imshow(picture, aspect="auto", interpolation="none")
        axes.set_yticks(
            [place * step + images / 2 - 0.5 for place in range(len(own))],
            labels=[str(layer) for layer in own],
        )
        if 0 < frozen < prompts:
            axes.axvline(frozen - 0.5, color=INK, alpha=0.5, lw=0.7)
        axes.set_xlabel("prompt")
        axes.set_ylabel("layer")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def selected_prompts(stage: StageEvidence) -> NDArray[np.float64]:
    """Mean number of frozen and active prompts that an image selects, `[L, 2]`."""
    means = [routed.support.double().mean(0).numpy() for routed in stage.routing]
    return np.asarray(np.mean(means, axis=0), np.float64)


@styled
def selection_counts(stages: Sequence[StageEvidence]) -> Figure:
    """`selected_prompts` of each stage, as bars per layer."""
    figure, all_axes = panels(len(stages), 2, WIDTH / 2, 1.25, extra=0.6)
    for axes, stage in zip(all_axes, stages, strict=True):
        counts = selected_prompts(stage)
        layers = np.arange(len(counts))
        axes.bar(layers, counts[:, 0], color=GREY, label="frozen")
        axes.bar(layers, counts[:, 1], bottom=counts[:, 0], color=BLUE, label="active")
        axes.set_title(f"after stage {stage.number}", size=9)
        axes.set_xticks(layers)
        axes.tick_params(length=0, labelsize=8)
    figure.supxlabel("layer", size=10)
    figure.supylabel("prompts selected", size=10)
    legend_above(figure, 2)
    return figure


def selection_frequency(stage: StageEvidence) -> NDArray[np.float64]:
    """Share of images that select each prompt `[N]`, averaged over layers and domains."""
    return np.asarray(np.mean([r.frequency.numpy() for r in stage.routing], axis=(0, 1)))


@styled
def selection_frequencies(stages: Sequence[StageEvidence]) -> Figure:
    """`selection_frequency` of each stage."""
    figure, all_axes = panels(len(stages), 1, WIDTH, 1.0, extra=0.5)
    for axes, stage in zip(all_axes, stages, strict=True):
        shares, frozen = selection_frequency(stage), frozen_prompts(stage)
        edges = np.arange(len(shares) + 1) - 0.5
        # One path per set instead of hundreds of bars.
        axes.stairs(shares[:frozen], edges[: frozen + 1], fill=True, color=GREY)
        axes.stairs(shares[frozen:], edges[frozen:], fill=True, color=BLUE)
        axes.set_title(f"after stage {stage.number}", size=9)
        axes.set_ylim(0, 1.02)
        axes.set_xlim(-0.5, len(selection_frequency(stages[-1])) - 0.5)
    figure.supxlabel("prompt", size=10)
    figure.supylabel("share of images", size=10)
    return figure


def cosines(stage: StageEvidence) -> NDArray[np.float64]:
    """Cosine similarity of all pairs of prompts `[N, N]`."""
    assert stage.similarity is not None
    return np.asarray(stage.similarity.double().numpy())


@styled
def similarity(stages: Sequence[StageEvidence]) -> Figure:
    """`cosines` of each stage; lines separate prompts of different stages."""
    columns = min(len(stages), 4)
    figure, all_axes = panels(len(stages), columns, 2.0, 2.1, extra=0.2)
    ends: list[int] = []
    for axes, stage in zip(all_axes, stages, strict=True):
        found = cosines(stage)
        picture = np.where(found[..., None] < 0, tint(-found, ORANGE, 1.0), tint(found, BLUE, 1.0))
        axes.imshow(picture, interpolation="none")
        for end in ends:
            axes.axhline(end - 0.5, color=INK, alpha=0.5, lw=0.6)
            axes.axvline(end - 0.5, color=INK, alpha=0.5, lw=0.6)
        if not ends or len(found) > ends[-1]:
            ends.append(len(found))
        axes.set_title(f"after stage {stage.number}", size=9)
        axes.tick_params(length=0, labelsize=8)
    figure.supxlabel("prompt", size=10)
    figure.supylabel("prompt", size=10)
    return figure
