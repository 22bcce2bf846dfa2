"""Figures of training: losses and their weights, learning rate, validation, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from sodap.learning.trace import Trace
from sodap.reporting.figures.style import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    WIDTH,
    few_values,
    legend_above,
    round_values,
    styled,
    y_ticks,
)
from sodap.runs.record import EpochRow

MIN_RANGE = 1.2
"""Smallest ratio of the ends of the axis of weights."""


@styled
def losses(rows: Sequence[EpochRow], traces: Mapping[int, Trace], size: int = 1) -> Figure:
    """Loss terms at every step of all stages and, if they are learned, their weights.

    `traces` are the steps by stage. A point is the mean of `size` steps; dots are the means of
    epochs, from `rows`.
    """
    terms = list(dict.fromkeys(term for row in rows for term in row.losses))
    count = 2 if any(trace.weights for trace in traces.values()) else 1
    figure = Figure(figsize=(WIDTH, 5.0 if count == 2 else 3.2))
    all_axes = [figure.add_subplot(count, 1, 1)]
    if count == 2:
        all_axes.append(figure.add_subplot(2, 1, 2, sharex=all_axes[0]))
    first = 1  # number of the stage's first step, counted over all stages
    for stage, trace in traces.items():
        for axes, columns in zip(all_axes, (trace.losses, trace.weights), strict=False):
            for term, colour in zip(terms, cycle(COLOURS), strict=False):
                if term in columns:
                    x, y = group_means(columns[term].numpy(), size)
                    alpha = 0.55 if axes is all_axes[0] else 1.0  # below the dots of epochs
                    axes.plot(first + x, y, lw=0.9, alpha=alpha, color=colour, label=f"_{term}")
            if first > 1:
                axes.axvline(first - 0.5, color=INK, alpha=0.25, lw=0.8)
        above = all_axes[0].get_xaxis_transform()
        middle = first + (len(trace) - 1) / 2
        all_axes[0].text(middle, 1.03, str(stage), ha="center", transform=above)
        first += len(trace)
    _draw_epochs(all_axes[0], rows, traces, terms)
    _scale_losses(all_axes[0], [value for row in rows for value in row.losses.values()])
    if count == 2:
        _scale_weights(all_axes[1])
    all_axes[-1].set_xlabel("training step, counted over all stages")
    all_axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_above(figure, 5)
    return figure


def group_means(
    values: NDArray[np.float32], size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Middle and mean of every `size` values; NaN values are left out."""
    starts = np.arange(0, len(values), size)
    ends = np.minimum(starts + size, len(values))
    counts = np.add.reduceat(~np.isnan(values), starts, dtype=np.int64)
    sums = np.add.reduceat(np.nan_to_num(values), starts, dtype=np.float64)
    means = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    return (starts + ends - 1) / 2, means


def _draw_epochs(
    axes: Axes, rows: Sequence[EpochRow], traces: Mapping[int, Trace], terms: Sequence[str]
) -> None:
    """Means of epochs as dots, each in the middle of the steps of its epoch."""
    middles = []
    done = 0
    for row in rows:
        steps = int((traces[row.stage].epoch == row.epoch).sum())
        middles.append(done + (steps + 1) / 2)
        done += steps
    for term, colour, marker in zip(terms, cycle(COLOURS), cycle(MARKERS), strict=False):
        means = [row.losses.get(term, np.nan) for row in rows]
        axes.plot(middles, means, marker, ms=3, color=colour, label=term)


def _drawn(axes: Axes) -> NDArray[np.float64]:
    """All finite y values; vertical lines, which have a transform of their own, are left out."""
    lines = [line for line in axes.lines if line.get_transform() == axes.transData]
    found = np.concatenate([np.asarray(line.get_ydata(), np.float64) for line in lines])
    return np.asarray(found[np.isfinite(found)])


def _scale_losses(axes: Axes, epochs: Sequence[float]) -> None:
    """Logarithmic, but linear near 0, since a loss may be 0.

    The linear part ends at a power of ten, at most the smallest positive mean of an epoch. Single
    steps do not count, since the first of a stage may have almost no loss, and neither do means
    below a millionth of the largest.
    """
    positive = [loss for loss in epochs if np.isfinite(loss) and loss > 0] or [1.0]
    linear = float(10.0 ** np.floor(np.log10(max(min(positive), 1e-6 * max(positive)))))
    highest = _drawn(axes).max(initial=0.0)
    axes.set_yscale("symlog", linthresh=linear)
    axes.set_ylim(0, highest * 1.3 or linear)
    y_ticks(axes, [0, *round_values(linear, highest * 1.3)])
    axes.set_ylabel("loss")
    axes.text(-0.02, 1.03, "stage", ha="right", transform=axes.transAxes)


def _scale_weights(axes: Axes) -> None:
    weights = _drawn(axes)
    lowest, highest = weights.min(), weights.max()
    middle = (lowest * highest) ** 0.5
    reach = max(1.1 * highest / lowest, MIN_RANGE) ** 0.5
    low, high = middle / reach, middle * reach
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    y_ticks(axes, few_values(low, high))
    axes.set_ylabel("weight")


@styled
def schedule(rows: Sequence[EpochRow], best: Sequence[tuple[int, float]]) -> Figure:
    """Validation macro-F1 and learning rate of every epoch; `best` epochs get a ring."""
    figure = Figure(figsize=(WIDTH, 4.0))
    top = figure.add_subplot(2, 1, 1)
    bottom = figure.add_subplot(2, 1, 2, sharex=top)
    first = 1
    for stage, group in groupby(rows, key=lambda row: row.stage):
        own = list(group)
        x = np.arange(first, first + len(own))
        top.plot(x, [row.val_macro_f1 for row in own], "-o", ms=3, lw=1.4, color=BLUE)
        bottom.plot(x, [row.lr for row in own], "-o", ms=3, lw=1.4, color=ORANGE)
        first += len(own)
        if stage != rows[-1].stage:
            for axes in (top, bottom):
                axes.axvline(first - 0.5, color=INK, alpha=0.25, lw=0.8)
    if best:
        epochs, scores = zip(*best, strict=True)
        top.plot(epochs, scores, "o", ms=9, mfc="none", mec=ORANGE, label="best")
    for axes in (top, bottom):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=INK, alpha=0.15)
    top.set_ylim(0, 1.05)
    top.set_ylabel("macro-F1")
    bottom.set_ylim(0, max(row.lr for row in rows) * 1.1)
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("epoch, counted over all stages")
    return figure


@styled
def stage_times(names: Sequence[str], seconds: Mapping[str, Sequence[float]]) -> Figure:
    """Seconds of each stage as stacked bars, by kind of work."""
    figure = Figure(figsize=(WIDTH, 0.9 + 0.34 * len(names)))
    axes = figure.add_subplot()
    left = np.zeros(len(names))
    for (kind, widths), colour in zip(seconds.items(), (BLUE, ORANGE, GREY), strict=True):
        axes.barh(range(len(names)), widths, 0.62, left, color=colour, label=kind)
        left += np.array(widths)
    axes.set_yticks(range(len(names)), labels=names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    legend_above(figure, 3)
    return figure
