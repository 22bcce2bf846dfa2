"""What a run has shown, drawn from its record; every function returns a figure of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from sodap.reporting.svg import INK, METHOD_COLOURS, STYLE
from sodap.streams import Domain, Stream

if TYPE_CHECKING:  # a table of results needs no learner
    from sodap.learning.trace import Trace

Record = Mapping[str, Any]
"""What `sodap.experiments.run` returns and `record.json` holds."""

Row = Mapping[str, Any]
"""One epoch: a line of `log.jsonl`."""

WIDTH = 5.2  # inches; at this width the text can still be read on a telephone
COLUMNS = 10
THUMBNAIL = 48  # pixels a side at most: enough to see, small enough for a page
GAP = 3
CLASS_GAP = 12  # pixels; wider than between two images of one class
LEAST_RANGE = 1.2
"""From the lower to the upper end of the axis of weights: smaller changes are next to none."""
KINDS = ("losses", "weights")
"""What an epoch and a step hold for each term."""
BLUE, ORANGE = METHOD_COLOURS[:2]
GREY = "#6b7280"
MARKERS = "osD^v"  # for those to whom colours say little


def samples(stream: Stream) -> Figure:
    """Test images, one row a domain, one or more columns a class."""
    shown = stream.classes[:COLUMNS]
    each = max(1, COLUMNS // len(shown))
    side = min(stream.domains[0].test.images.shape[-1], THUMBNAIL)
    gap = CLASS_GAP if each > 1 else GAP
    sheet = np.vstack([_strip(domain, len(shown), each, side, gap) for domain in stream.domains])
    high, wide, _ = sheet.shape
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.3 + 0.82 * WIDTH * high / wide))
        axes = figure.add_subplot()
        axes.imshow(sheet, interpolation="none")  # embedded as it is, not drawn anew
        middles = (np.arange(len(shown)) + 0.5) * wide / len(shown) - gap / 2
        axes.set_xticks(middles, labels=shown)
        names = [domain.name for domain in stream.domains]
        axes.set_yticks((np.arange(len(names)) + 0.5) * high / len(names), labels=names)
        _bare(axes)
    return figure


def _strip(domain: Domain, classes: int, each: int, side: int, gap: int) -> NDArray[np.uint8]:
    """The first `each` test images of every class in a row, clear where there are too few.

    `gap` clear columns of pixels part two classes.
    """
    step = side + GAP
    strip = np.zeros((step, classes, each * step - GAP + gap, 4), np.uint8)
    for label in range(classes):
        found = domain.test.images[domain.test.labels == label][:each]
        if len(found) == 0:
            continue
        small = F.interpolate(found.float(), (side, side), mode="bicubic", antialias=True)
        tiles = small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
        for number, tile in enumerate(tiles):
            place = strip[:side, label, number * step : number * step + side]
            place[..., :3], place[..., 3] = tile, 255
    return strip.reshape(step, -1, 4)


def accuracy_matrix(record: Record, title: str) -> Figure:
    """R as a heat map. Cells of domains that were not learned yet are left without colour."""
    R, names = record["R"]["accuracy"], _domains(record)
    with rc_context(STYLE):
        figure = Figure(figsize=(max(WIDTH, 1.3 + 0.8 * len(names)), 0.8 + 0.5 * len(R)))
        axes = figure.add_subplot()
        axes.set_title(title, weight="bold")
        for stage, row in enumerate(R):
            for domain, value in enumerate(row):
                _cell(axes, stage, domain, value)
        axes.set_xlim(0, len(names))
        axes.set_ylim(len(R), 0)
        slant = 30 if max(map(len, names)) > 11 else 0
        axes.set_xticks(
            np.arange(len(names)) + 0.5,
            labels=names,
            rotation=slant,
            ha="left" if slant else "center",
        )
        after = [f"after {name}" for name in names[: len(R)]]
        axes.set_yticks(np.arange(len(R)) + 0.5, labels=after)
        _bare(axes)
    return figure


def _cell(axes: Axes, stage: int, domain: int, value: float) -> None:
    learned = domain <= stage
    colour = colormaps["cividis"](value)
    luminance = float(np.dot(colour[:3], (0.299, 0.587, 0.114)))
    axes.add_patch(
        Rectangle(
            (domain + 0.03, stage + 0.04),
            0.94,
            0.92,
            facecolor=colour if learned else "none",
            edgecolor="none" if learned else (INK, 0.35),
            linestyle="-" if learned else ":",
        )
    )
    ink = ("black" if luminance > 0.46 else "white") if learned else INK
    axes.text(
        domain + 0.5,
        stage + 0.5,
        f"{value:.3f}",
        ha="center",
        va="center",
        color=ink,
        alpha=1.0 if learned else 0.65,
        fontstyle="normal" if learned else "italic",
    )


def forgetting(records: Mapping[str, Record]) -> Figure:
    """One panel a domain: its accuracy after each stage, a line for each method.

    Dots before the domain's own stage: what the model knew without having learned it.
    """
    names = _domains(next(iter(records.values())))
    rows = (len(names) + 1) // 2
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.7 + 1.55 * rows))
        for domain, name in enumerate(names):
            axes = figure.add_subplot(rows, 2, domain + 1)
            axes.set_title(name)
            for (method, record), colour, marker in zip(
                records.items(), cycle(METHOD_COLOURS), cycle(MARKERS), strict=False
            ):
                R = np.array(record["R"]["accuracy"])
                stages = np.arange(1, len(R) + 1)
                axes.plot(
                    stages[: domain + 1], R[: domain + 1, domain], ":", color=colour, alpha=0.7
                )
                axes.plot(
                    stages[domain:],
                    R[domain:, domain],
                    marker=marker,
                    ms=5,
                    color=colour,
                    label=method,
                )
            axes.set_ylim(-0.03, 1.05)
            axes.set_xlim(0.7, len(names) + 0.3)
            axes.set_xticks(range(1, len(names) + 1))
            axes.grid(axis="y", color=INK, alpha=0.15)
        figure.supxlabel("stages learned", size=10)
        figure.supylabel("accuracy", size=10)
        lines = figure.axes[0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside upper center", ncols=min(len(records), 3))
    return figure


def pool_growth(record: Record) -> Figure:
    """Prompts in use at the end of each stage: frozen ones, and those that learned in it."""
    stages = record["stages"]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.2))
        axes = figure.add_subplot()
        below = np.zeros(len(stages))
        for kind, colour in (("frozen", GREY), ("active", BLUE)):
            counts = np.array([stage["ended"]["pool"][kind] for stage in stages])
            bars = axes.bar(range(len(stages)), counts, 0.62, below, color=colour, label=kind)
            written = [str(count) if count else "" for count in counts]
            axes.bar_label(bars, written, label_type="center", color="white", weight="bold")
            below += counts
        axes.set_ylabel("prompts")
        _stage_axis(axes, stages)
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def drift(record: Record) -> Figure:
    """The drift score of each stage that measured one, beside its range when nothing drifts."""
    stages = [stage for stage in record["stages"] if "drift" in stage["begun"]]
    highest = 1.0
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.2))
        axes = figure.add_subplot()
        for place, stage in enumerate(stages):
            met = stage["begun"]["drift"]
            batches = np.mean(met["scores"], axis=1)
            left, right = place - 0.36, place + 0.36
            if met["null_band"] is not None:
                low, high = met["null_band"]["low"], met["null_band"]["high"]
                axes.fill_between(
                    [left, right], low, high, color=GREY, alpha=0.4, lw=0, label="no drift"
                )
                highest = max(highest, high)
            order = np.linspace(left + 0.06, right - 0.06, len(batches))
            axes.plot(order, batches, "o", color=BLUE, ms=3.5, alpha=0.8, label="one batch")
            axes.plot([left, right], [met["score"]] * 2, color=ORANGE, lw=2, label="stage mean")
            highest = max(highest, float(np.max(batches)))
            axes.text(
                place,
                1.02,
                f"+{met['added']}",
                ha="center",
                transform=axes.get_xaxis_transform(),
            )
        axes.text(-0.02, 1.02, "prompts", ha="right", transform=axes.transAxes)
        # Linear up to 1, where scores without drift lie; logarithmic above: drift has no bound.
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(0, highest * 1.15)
        _ticks(axes, [0, *_round_numbers(0.5, highest * 1.15)])
        axes.set_ylabel("drift score")
        _stage_axis(axes, stages)
        handles, names = axes.get_legend_handles_labels()
        once = dict(zip(names, handles, strict=True))
        figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=3)
    return figure


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
    _ticks(top, [0, *_round_numbers(linear, highest * 1.3)])
    top.set_ylabel("loss")
    if weights:
        bottom = figure.add_subplot(2, 1, 2, sharex=top)
        middle = (min(weights) * max(weights)) ** 0.5
        reach = max(1.1 * max(weights) / min(weights), LEAST_RANGE) ** 0.5
        low, high = middle / reach, middle * reach
        bottom.set_yscale("log")
        bottom.set_ylim(low, high)
        _ticks(bottom, _few_numbers(low, high))
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


def _name_stages(axes: Axes, middles: Iterable[tuple[float, int]]) -> None:
    """The number of each stage above its middle."""
    axes.text(-0.02, 1.03, "stage", ha="right", transform=axes.transAxes)
    for place, stage in middles:
        axes.text(place, 1.03, str(stage), ha="center", transform=axes.get_xaxis_transform())


def _loss_legend(figure: Figure) -> None:
    lines = figure.axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper center", ncols=5)


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


def _stage_middles(rows: Sequence[Row]) -> Iterator[tuple[float, int]]:
    first = 1
    for stage, group in groupby(rows, key=lambda row: int(row["stage"])):
        count = len(list(group))
        yield first + (count - 1) / 2, stage
        first += count


def _domains(record: Record) -> list[str]:
    return [domain["name"] for domain in record["stream"]["domains"]]


def _stage_axis(axes: Axes, stages: Sequence[Mapping[str, Any]]) -> None:
    names = [stage["domain"] for stage in stages]
    if len(names) * max(map(len, names)) <= 55:  # about as much as fits in one line
        numbered = [f"{stage['stage']}\n{stage['domain']}" for stage in stages]
        axes.set_xticks(range(len(names)), labels=numbered)
    else:
        axes.set_xticks(range(len(names)), labels=names, rotation=30, ha="right")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="x", length=0)


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... from `low` to `high`; powers of ten alone where these would be many."""
    powers = range(-12, 8)
    fine = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [number for number in fine if low <= number <= high]
    return inside if len(inside) <= 6 else [10.0**n for n in powers if low <= 10.0**n <= high]


def _few_numbers(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, at equal distances where 1, 2, 5 would be too coarse."""
    coarse = _round_numbers(low, high)
    if len(coarse) > 2:
        return coarse
    return [float(n) for n in MaxNLocator(5).tick_values(low, high) if low <= n <= high]


def _ticks(axes: Axes, numbers: Sequence[float]) -> None:
    """These numbers, in plain digits, and a thin line at each."""
    axes.yaxis.set_major_locator(FixedLocator(numbers))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", color=INK, alpha=0.15)


def _bare(axes: Axes) -> None:
    """Labels on top and at the left, no lines."""
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
