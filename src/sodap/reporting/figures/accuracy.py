"""Figures of accuracy: R, forgetting, recall, confusion, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from sodap.evaluation import Reliability
from sodap.reporting.figures.style import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    WIDTH,
    heat_map,
    label_cells,
    legend_above,
    name_axes,
    no_lines,
    panels,
    styled,
    text_colour,
    tint,
    x_labels,
    y_ticks,
)
from sodap.runs.record import Matrix

MAX_PANELS = 12
MAX_COUNTED = 10
"""Most classes of a confusion matrix that shows its counts."""


@styled
def accuracy_matrix(R: Matrix, domains: Sequence[str], title: str) -> Figure:
    """R as a heat map; cells of domains that are not learned yet have no colour."""
    figure = Figure(figsize=(max(WIDTH, 1.3 + 0.8 * len(domains)), 0.8 + 0.5 * len(R)))
    axes = figure.add_subplot()
    axes.set_title(title, weight="bold")
    for stage, row in enumerate(R):
        for domain, value in enumerate(row):
            _cell(axes, stage, domain, value)
    axes.set_xlim(0, len(domains))
    axes.set_ylim(len(R), 0)
    slant = 30 if max(map(len, domains)) > 11 else 0
    x_labels(axes, np.arange(len(domains)) + 0.5, domains, slant=slant)
    after = [f"after {name}" for name in domains[: len(R)]]
    axes.set_yticks(np.arange(len(R)) + 0.5, labels=after)
    name_axes(axes, columns="tested on")
    no_lines(axes)
    return figure


def _cell(axes: Axes, stage: int, domain: int, value: float) -> None:
    learned = domain <= stage
    colour = np.array(colormaps["cividis"](value))
    axes.add_patch(
        Rectangle(
            (domain + 0.03, stage + 0.04),
            0.94,
            0.92,
            facecolor=tuple(colour) if learned else "none",
            edgecolor="none" if learned else (INK, 0.35),
            linestyle="-" if learned else ":",
        )
    )
    axes.text(
        domain + 0.5,
        stage + 0.5,
        f"{value:.3f}",
        ha="center",
        va="center",
        color=text_colour(colour) if learned else INK,
        alpha=1.0 if learned else 0.65,
        fontstyle="normal" if learned else "italic",
    )


@styled
def forgetting(results: Mapping[str, Matrix], domains: Sequence[str]) -> Figure:
    """One panel per domain: its accuracy after each stage, with a line for each R.

    Dotted lines show the accuracy before the domain was learned.
    """
    figure, all_axes = panels(len(domains), 2, WIDTH / 2, 1.55, extra=0.7)
    for domain, (name, axes) in enumerate(zip(domains, all_axes, strict=True)):
        axes.set_title(name)
        for (label, matrix), colour, marker in zip(
            results.items(), cycle(COLOURS), cycle(MARKERS), strict=False
        ):
            R = np.array(matrix)
            stages = np.arange(1, len(R) + 1)
            before, after = slice(domain + 1), slice(domain, None)
            axes.plot(stages[before], R[before, domain], ":", color=colour, alpha=0.7)
            axes.plot(
                stages[after], R[after, domain], marker=marker, ms=5, color=colour, label=label
            )
        axes.set_ylim(-0.03, 1.05)
        axes.set_xlim(0.7, len(domains) + 0.3)
        axes.set_xticks(range(1, len(domains) + 1))
        axes.grid(axis="y", color=INK, alpha=0.15)
    figure.supxlabel("stages learned", size=10)
    figure.supylabel("accuracy", size=10)
    legend_above(figure, min(len(results), 3))
    return figure


@styled
def recall(
    recalls: Sequence[Sequence[float | None]], domains: Sequence[str], classes: Sequence[str]
) -> Figure:
    """Recall `[domains][classes]` as a heat map; None stays clear."""
    width = max(WIDTH, 1.5 + 0.42 * len(classes))
    figure = Figure(figsize=(width, 0.9 + 0.32 * len(domains)))
    axes = figure.add_subplot()
    heat_map(axes, np.array(recalls, np.float64), domains, classes)
    name_axes(axes, "domain", "class")
    return figure


@styled
def confusion(
    confusions: Sequence[NDArray[np.int64]], domains: Sequence[str], classes: Sequence[str]
) -> Figure:
    """One confusion matrix per domain: right predictions in blue, wrong ones in orange."""
    confusions = confusions[:MAX_PANELS]
    side = max(2.2, 0.9 + 0.3 * len(classes)) + 0.3
    figure, all_axes = panels(len(confusions), min(2, len(confusions)), side, side * 0.9)
    for axes, name, counts in zip(all_axes, domains, confusions, strict=False):
        axes.set_title(name)
        share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        right = np.eye(len(counts), dtype=bool)[..., None]
        picture = np.where(right, tint(share, BLUE, 1.0), tint(share, ORANGE, 1.0))
        axes.imshow(picture, interpolation="none", aspect="auto")
        label_cells(axes, classes, classes)
        for edge in range(len(counts) + 1):
            axes.axhline(edge - 0.5, color=INK, alpha=0.12, lw=0.5)
            axes.axvline(edge - 0.5, color=INK, alpha=0.12, lw=0.5)
        if len(counts) <= MAX_COUNTED:
            for (row, column), count in np.ndenumerate(counts):
                if count:
                    axes.text(column, row, str(count), ha="center", va="center", size=7)
    figure.supxlabel("predicted class", size=10)
    figure.supylabel("true class", size=10)
    return figure


@styled
def calibration(found: Sequence[Reliability], domains: Sequence[str]) -> Figure:
    """One reliability diagram per domain, with the number of images of each bin below it.

    A bin without right answers has no bar, but a dot at 0 and a line to where it should be.
    """
    found = found[:MAX_PANELS]
    columns = min(len(found), 4 if len(found) > 3 else 3)
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(max(WIDTH, 1.9 * columns), 3.1 * rows))
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[3, 1] * rows)
    most = max(int(each.counts.max()) for each in found)
    for place, (name, each) in enumerate(zip(domains, found, strict=False)):
        row, column = divmod(place, columns)
        above = figure.add_subplot(grid[2 * row, column])
        below = figure.add_subplot(grid[2 * row + 1, column], sharex=above)
        # The number has its own line: a long name may be shortened, the number must not.
        above.set_title(f"{name}\nECE {each.error:.3f}", size=9)
        _reliability(above, each)
        _counts(below, each, most)
        if column == 0:
            above.set_ylabel("accuracy")
            below.set_ylabel("images")
    figure.supxlabel("confidence", size=10)
    return figure


def _reliability(axes: Axes, found: Reliability) -> None:
    """Accuracy of each bin that has images, and its distance to the diagonal."""
    some = found.counts > 0
    sure, right = found.confidence[some], found.accuracy[some]
    axes.bar(sure, right, 0.8 / len(found.counts), color=BLUE, alpha=0.6)
    axes.vlines(sure, right, sure, color=ORANGE, lw=1.6)
    axes.plot([0, 1], [0, 1], color=ORANGE, lw=1.2)
    axes.plot(sure, right, "o", ms=4, color=BLUE, clip_on=False, zorder=3)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y", color=INK, alpha=0.15)


def _counts(axes: Axes, found: Reliability, most: int) -> None:
    """Images of each bin, on a logarithmic axis, so that a single one can be seen."""
    some = found.counts > 0
    axes.bar(found.confidence[some], found.counts[some], 0.8 / len(found.counts), color=GREY)
    axes.set_yscale("log")
    axes.set_ylim(0.5, 2 * most)
    highest = int(found.counts.max())
    y_ticks(axes, [1, highest] if highest > 9 else [highest])  # not one upon the other
    axes.set_xticks([0, 0.5, 1])
