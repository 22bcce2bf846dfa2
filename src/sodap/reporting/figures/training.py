"""Figures of training: losses and their weights, learning rate, validation, time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
"""x, from 0 at the start of the stage, and y."""


@dataclass(frozen=True)
class StageCurves:
    """Losses and weights of one stage, by term."""

    stage: int
    length: int
    losses: Mapping[str, Curve]
    weights: Mapping[str, Curve]


@styled
def losses(
    rows: Sequence[EpochRow], traces: Mapping[int, Trace] | None = None, size: int = 1
) -> Figure:
    """Loss terms and, if they are learned, their weights over all stages.

    With `traces` (by stage), a point is the mean of `size` steps, and dots are the means of
    epochs. Without, a point is an epoch.
    """
    stages = list(_by_step(traces, size) if traces else _by_epoch(rows))
    terms = list(dict.fromkeys(term for row in rows for term in row.losses))
    epochs = [value for row in rows for value in row.losses.values()]
    figure = _axes(epochs, _values(stages, "losses"), _values(stages, "weights"))
    for axes, kind in zip(figure.axes, ("losses", "weights"), strict=False):
        _draw(axes, stages, kind, terms, by_step=bool(traces))
    if traces:
        _draw_epochs(figure.axes[0], rows, traces, terms)
    figure.axes[-1].set_xlabel(f"{'training step' if traces else 'epoch'}, counted over all stages")
    legend_above(figure, 5)
    return figure


def _by_epoch(rows: Sequence[EpochRow]) -> Iterator[StageCurves]:
    for stage, group in groupby(rows, key=lambda row: row.stage):
        own = list(group)
        x = np.arange(len(own), dtype=np.float64)
        curves = [
            {
                term: (x, np.array([getattr(row, kind).get(term, np.nan) for row in own]))
                for term in dict.fromkeys(term for row in own for term in getattr(row, kind))
            }
            for kind in ("losses", "weights")
        ]
        yield StageCurves(stage, len(own), *curves)


def _by_step(traces: Mapping[int, Trace], size: int) -> Iterator[StageCurves]:
    for stage, trace in traces.items():
        curves = [
            {term: group_means(values.numpy(), size) for term, values in columns.items()}
            for columns in (trace.losses, trace.weights)
        ]
        yield StageCurves(stage, len(trace), *curves)


def group_means(values: NDArray[np.float32], size: int) -> Curve:
    """Middle and mean of every `size` values; NaN values are left out."""
    starts = np.arange(0, len(values), size)
    ends = np.minimum(starts + size, len(values))
    counts = np.add.reduceat(~np.isnan(values), starts, dtype=np.int64)
    sums = np.add.reduceat(np.nan_to_num(values), starts, dtype=np.float64)
    means = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    return (starts + ends - 1) / 2, means


def _values(stages: Sequence[StageCurves], kind: str) -> list[float]:
    """All finite values of a kind."""
    found = [y for stage in stages for _, y in getattr(stage, kind).values()]
    return [float(value) for y in found for value in y[np.isfinite(y)]]


def _axes(epochs: Sequence[float], values: Sequence[float], weights: Sequence[float]) -> Figure:
    """Axes for the losses, and below them for the weights, if there are any."""
    figure = Figure(figsize=(WIDTH, 5.0 if weights else 3.2))
    top = figure.add_subplot(2 if weights else 1, 1, 1)
    finite = [value for value in epochs if np.isfinite(value)]
    highest = max([*finite, *values], default=0.0)
    linear = _linear_below(finite)
    top.set_yscale("symlog", linthresh=linear)  # a loss may be exactly 0
    top.set_ylim(0, highest * 1.3 or linear)
    y_ticks(top, [0, *round_values(linear, highest * 1.3)])
    top.set_ylabel("loss")
    if weights:
        bottom = figure.add_subplot(2, 1, 2, sharex=top)
        middle = (min(weights) * max(weights)) ** 0.5
        reach = max(1.1 * max(weights) / min(weights), MIN_RANGE) ** 0.5
        low, high = middle / reach, middle * reach
        bottom.set_yscale("log")
        bottom.set_ylim(low, high)
        y_ticks(bottom, few_values(low, high))
        bottom.set_ylabel("weight")
    top.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _linear_below(epochs: Sequence[float]) -> float:
    """End of the linear part of the axis: a power of ten, at most the smallest positive loss.

    Only means of epochs count, since the first step of a stage may have a loss of almost 0. Losses
    below a millionth of the largest do not count either.
    """
    positive = [loss for loss in epochs if loss > 0] or [1.0]
    return float(10.0 ** np.floor(np.log10(max(min(positive), 1e-6 * max(positive)))))


def _draw(
    axes: Axes, stages: Sequence[StageCurves], kind: str, terms: Sequence[str], *, by_step: bool
) -> None:
    """One line per term and stage, and a vertical line between stages."""
    losses = kind == "losses"
    if losses:
        axes.text(-0.02, 1.03, "stage", ha="right", transform=axes.transAxes)
    first = 1  # x of the first point of the stage
    for stage in stages:
        for term, colour, marker in zip(terms, cycle(COLOURS), cycle(MARKERS), strict=False):
            if term in getattr(stage, kind):
                x, y = getattr(stage, kind)[term]
                if by_step:
                    alpha = 0.55 if losses else 1.0  # the dots of epochs lie on top of the losses
                    axes.plot(first + x, y, lw=0.9, alpha=alpha, color=colour, label=f"_{term}")
                else:
                    axes.plot(first + x, y, marker=marker, ms=3, lw=1.4, color=colour, label=term)
        if first > 1:
            axes.axvline(first - 0.5, color=INK, alpha=0.25, lw=0.8)
        if losses:
            middle = first + (stage.length - 1) / 2
            above = axes.get_xaxis_transform()
            axes.text(middle, 1.03, str(stage.stage), ha="center", transform=above)
        first += stage.length


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
