"""Figures of cross-composition: representations of one stage with heads of another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from sodap.evaluation import Effects
from sodap.reporting.figures.style import (
    COLOURS,
    INK,
    WIDTH,
    heat_map,
    legend_above,
    panels,
    styled,
)
from sodap.runs.composition import Composition

MAX_PANELS = 12
PARTS = ("representation", "classifier", "interaction", "both")


@styled
def compositions(found: Composition, domains: Sequence[str]) -> Figure:
    """One heat map per domain: representation (rows) and head (columns) of each stage."""
    A = np.array(found.accuracy)  # [T, T, D]
    stages, count = len(A), min(A.shape[2], MAX_PANELS)
    side = max(1.5, 0.5 + 0.36 * stages)
    figure, all_axes = panels(count, min(count, 4 if count > 3 else 3), side, side + 0.35)
    rows = [f"B{stage}" for stage in range(1, stages + 1)]
    columns = [f"C{stage}" for stage in range(1, stages + 1)]
    for domain, axes in enumerate(all_axes):
        heat_map(axes, A[:, :, domain], rows, columns)
        axes.set_title(domains[domain], size=9)
    figure.supxlabel("head of stage", size=10)
    figure.supylabel("representation of stage", size=10)
    return figure


@styled
def effects(found: Sequence[Effects], domains: Sequence[str]) -> Figure:
    """Bars per old domain: changes by the representation, the head, and both."""
    places = np.arange(len(found))
    figure = Figure(figsize=(WIDTH, 3.0))
    axes = figure.add_subplot()
    for index, (part, colour) in enumerate(zip(PARTS, COLOURS, strict=False)):
        values = [getattr(each, part) for each in found]
        axes.bar(places + (index - 1.5) * 0.2, values, 0.18, color=colour, label=part)
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xticks(places, labels=[domains[each.domain] for each in found])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("change of accuracy")
    legend_above(figure, 4)
    return figure


@styled
def probes(found: Composition, domains: Sequence[str]) -> Figure:
    """Accuracy of linear probes on the representation of each stage."""
    stages = len(found.probe.own)
    names = domains[: len(found.probe.own[0])]
    figure = Figure(figsize=(max(WIDTH, 1.0 + 0.9 * len(names)), 1.3 + 0.3 * stages))
    fits = (("own domain", found.probe.own), ("all domains", found.probe.joint))
    for place, (fit, accuracy) in enumerate(fits, 1):
        axes = figure.add_subplot(1, 2, place)
        rows = [f"B{stage}" for stage in range(1, stages + 1)]
        heat_map(axes, accuracy, rows, names, most=24)
        axes.set_title(f"fitted to {fit}", size=9)
    figure.supxlabel("tested on", size=10)
    figure.supylabel("representation of stage", size=10)
    return figure
