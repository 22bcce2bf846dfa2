"""What a run has shown, drawn from its record; every function returns a figure of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch.nn.functional as F
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from sodap.reporting.figures.svg import INK, METHOD_COLOURS, STYLE
from sodap.reporting.figures.ticks import round_numbers, ticks
from sodap.streams import Domain, Stream

Record = Mapping[str, Any]
"""What `sodap.runs.runner` returns and `record.json` holds."""

Row = Mapping[str, Any]
"""One epoch: a line of `log.jsonl`."""

WIDTH = 5.2  # inches; at this width the text can still be read on a telephone
COLUMNS = 10
THUMBNAIL = 48  # pixels a side at most: enough to see, small enough for a page
GAP = 3
CLASS_GAP = 12  # pixels; wider than between two images of one class
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
        ticks(axes, [0, *round_numbers(0.5, highest * 1.15)])
        axes.set_ylabel("drift score")
        _stage_axis(axes, stages)
        handles, names = axes.get_legend_handles_labels()
        once = dict(zip(names, handles, strict=True))
        figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=3)
    return figure


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


def _bare(axes: Axes) -> None:
    """Labels on top and at the left, no lines."""
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
