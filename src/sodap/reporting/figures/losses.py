"""Losses and the weights that were learned for them, by epoch and by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from sodap.reporting.figures.accuracy import MARKERS, WIDTH, Row
from sodap.reporting.figures.svg import INK, METHOD_COLOURS, STYLE
from sodap.reporting.figures.ticks import few_numbers, round_numbers, ticks

if TYPE_CHECKING:  # a table of results needs no learner
    from sodap.learning.trace import Trace

LEAST_RANGE = 1.2
"""From the lower to the upper end of the axis of weights: smaller changes are next to none."""
KINDS = ("losses", "weights")
"""What an epoch and a step hold for each term."""


def losses(rows: Sequence[Row]) -> Figure:
    """Every loss term over the epochs of all stages and, where they were learned, its weights."""
    with rc_context(STYLE):
        figure = _loss_figure(*(_of_epochs(rows, kind) for kind in KINDS))
        for axes, kind in zip(figure.axes, KINDS, strict=False):
            _terms(axes, rows, kind)
        _name_stages(figure.axes[0], _stage_middles(rows))
        figure.axes[-1].set_xlabel("epoch, counted over all stages")
        _loss_legend(figure)
    return figure


def losses_by_step(rows: Sequence[Row], traces: Mapping[int, Trace], size: int = 1) -> Figure:
    """Every loss term and its learned weight over the steps of all stages, a line a stage.

    A line has a point for every `size` steps, their mean. Dots are the means of whole epochs, each
    in the middle of its own.
    """
    terms = list(dict.fromkeys(term for row in rows for term in row["losses"]))
    drawn: dict[str, list[float]] = {
        kind: [
            value
            for trace in traces.values()
            for values in getattr(trace, kind).values()
            for value in group_means(values.numpy(), size)[1]
        ]
        for kind in KINDS
    }
    with rc_context(STYLE):
        figure = _loss_figure(_of_epochs(rows, "losses"), drawn["weights"], drawn["losses"])
        first = 1  # number of the stage's first step, counted over all stages
        middles = []
        for stage, trace in traces.items():
            for axes, columns in zip(figure.axes, (trace.losses, trace.weights), strict=False):
                for term, colour in zip(terms, cycle(METHOD_COLOURS), strict=False):
                    if term not in columns:
                        continue
                    x, y = group_means(columns[term].numpy(), size)
                    faint = 0.55 if axes is figure.axes[0] else 1.0  # dots lie upon it
                    axes.plot(first + x, y, lw=0.9, alpha=faint, color=colour, label=f"_{term}")
                if first > 1:
                    axes.axvline(first - 0.5, color=INK, alpha=0.25, lw=0.8)
            middles.append((first + (len(trace) - 1) / 2, stage))
            first += len(trace)
        _epoch_means(figure.axes[0], rows, traces, terms)
        _name_stages(figure.axes[0], middles)
        figure.axes[-1].set_xlabel("training step, counted over all stages")
        _loss_legend(figure)
    return figure


def group_means(
    values: NDArray[np.float32], size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The middle and the mean of every `size` values, from place 0 on; NaN where there is none."""
    starts = np.arange(0, len(values), size)
    ends = np.minimum(starts + size, len(values))
    there = np.add.reduceat(~np.isnan(values), starts, dtype=np.int64)
    sums = np.add.reduceat(np.nan_to_num(values), starts, dtype=np.float64)
    means = np.divide(sums, there, out=np.full(len(starts), np.nan), where=there > 0)
    return (starts + ends - 1) / 2, means


def unweighed(rows: Sequence[Row]) -> str:
    """Which stages have no weights, in brackets; empty where all have some."""
    weighed = {row["stage"] for row in rows if row["weights"]}
    bare = [stage for stage in dict.fromkeys(row["stage"] for row in rows) if stage not in weighed]
    if not bare:
        return ""
    numbers = ", ".join(map(str, bare))
    return f" (stage {numbers} has none)" if len(bare) == 1 else f" (stages {numbers} have none)"


def _of_epochs(rows: Sequence[Row], kind: str) -> list[float]:
    return [value for row in rows for value in row[kind].values()]


def _loss_figure(
    losses: Sequence[float], weights: Sequence[float], steps: Sequence[float] = ()
) -> Figure:
    """Axes that hold all losses, of epochs and of single steps, and below them all weights.

    The second axes are left out where there are no weights.
    """
    losses, weights, steps = (
        [value for value in each if np.isfinite(value)] for each in (losses, weights, steps)
    )
    highest = max([*losses, *steps], default=0.0)
    figure = Figure(figsize=(WIDTH, 5.0 if weights else 3.2))
    top = figure.add_subplot(2 if weights else 1, 1, 1)
    linear = _linear_below(losses)
    top.set_yscale("symlog", linthresh=linear)  # a loss may be exactly 0
    top.set_ylim(0, highest * 1.3 or linear)
    ticks(top, [0, *round_numbers(linear, highest * 1.3)])
    top.set_ylabel("loss")
    if weights:
        bottom = figure.add_subplot(2, 1, 2, sharex=top)
        middle = (min(weights) * max(weights)) ** 0.5
        reach = max(1.1 * max(weights) / min(weights), LEAST_RANGE) ** 0.5
        low, high = middle / reach, middle * reach
        bottom.set_yscale("log")
        bottom.set_ylim(low, high)
        ticks(bottom, few_numbers(low, high))
        bottom.set_ylabel("weight")
    top.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _linear_below(losses: Sequence[float]) -> float:
    """Up to where the axis is linear: a power of ten, no more than the smallest loss above 0.

    `losses` are those of whole epochs: that of a stage's first step may be 0 but for rounding, and
    would take all the room. So would an epoch below a millionth of the largest.
    """
    positive = [loss for loss in losses if loss > 0] or [1.0]
    return float(10.0 ** np.floor(np.log10(max(min(positive), 1e-6 * max(positive)))))


def _terms(axes: Axes, rows: Sequence[Row], kind: str) -> None:
    """One line a term, broken where a stage ends."""
    terms = list(dict.fromkeys(term for row in rows for term in row[kind]))
    for term, colour, marker in zip(terms, cycle(METHOD_COLOURS), cycle(MARKERS), strict=False):
        x: list[float] = []
        y: list[float] = []
        for epoch, (row, following) in enumerate(zip(rows, [*rows[1:], None], strict=True), 1):
            x.append(epoch)
            y.append(row[kind].get(term, np.nan))
            if following is not None and following["stage"] != row["stage"]:
                x.append(epoch + 0.5)
                y.append(np.nan)
        axes.plot(x, y, marker=marker, ms=3, lw=1.4, color=colour, label=term)
    for epoch, (row, following) in enumerate(pairwise(rows), 1):
        if row["stage"] != following["stage"]:
            axes.axvline(epoch + 0.5, color=INK, alpha=0.25, lw=0.8)


def _epoch_means(
    axes: Axes, rows: Sequence[Row], traces: Mapping[int, Trace], terms: Sequence[str]
) -> None:
    middles = []
    done = 0
    for row in rows:
        steps = int((traces[row["stage"]].epoch == row["epoch"]).sum())
        middles.append(done + (steps + 1) / 2)
        done += steps
    for term, colour, marker in zip(terms, cycle(METHOD_COLOURS), cycle(MARKERS), strict=False):
        means = [row["losses"].get(term, np.nan) for row in rows]
        axes.plot(middles, means, marker, ms=3, color=colour, label=term)


def _stage_middles(rows: Sequence[Row]) -> Iterator[tuple[float, int]]:
    first = 1
    for stage, group in groupby(rows, key=lambda row: int(row["stage"])):
        count = len(list(group))
        yield first + (count - 1) / 2, stage
        first += count


def _name_stages(axes: Axes, middles: Iterable[tuple[float, int]]) -> None:
    """The number of each stage above its middle."""
    axes.text(-0.02, 1.03, "stage", ha="right", transform=axes.transAxes)
    for place, stage in middles:
        axes.text(place, 1.03, str(stage), ha="center", transform=axes.get_xaxis_transform())


def _loss_legend(figure: Figure) -> None:
    lines = figure.axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper center", ncols=5)
