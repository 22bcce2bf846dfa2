"""Which prompts an image selects: one by one, and in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sodap.reporting.figures.accuracy import BLUE, GAP, GREY, THUMBNAIL, WIDTH
from sodap.reporting.figures.heat_maps import veil
from sodap.reporting.figures.svg import INK, STYLE
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Cell, Drawing, Prose, Section, Table
from sodap.reporting.pages.similarity import likeness_drawings
from sodap.runs.evidence import DomainRouting, StageEvidence

LAYER_GAP = 2
"""Clear rows between two layers of a heat map."""


def routing_section(run: ShownRun) -> Section | None:
    """None for a method without prompts; a note where it has some, but nothing was left."""
    blocks = [*_selections(run), *likeness_drawings(run)]
    if not blocks and any("pool" in stage.get("ended", {}) for stage in run.stages):
        blocks = [Prose("Nothing can be shown here: the run left no evidence.", "note")]
    return Section("routing", "Which prompts an image selects", blocks) if blocks else None


def _selections(run: ShownRun) -> Iterator[Block]:
    if not any(stage.routing for stage in run.evidence):
        return
    yield Prose(
        "Before each layer an image selects prompts from the pool. The frozen and the active "
        "prompts are selected apart from each other, and the weights within each set add up to 1. "
        "The images shown are the same for every method and seed."
    )
    for stage in run.evidence:
        for routed in stage.routing:
            # Its own domain at every stage, and at the end the first one, to see what became of it.
            new, last = routed.domain == stage.number - 1, stage is run.evidence[-1]
            if routed.weights is not None and (new or (last and routed.domain == 0)):
                yield Drawing(
                    f"routing-stage-{stage.number}-domain-{routed.domain + 1}",
                    f"Prompts that single images of {run.domains[routed.domain]} select after "
                    f"stage {stage.number} of {run.title}",
                    selection_figure(run, stage, routed),
                    f"After stage {stage.number} ({run.domains[stage.number - 1]}): test images of "
                    f"{run.domains[routed.domain]}, up to three a class, a row each, repeated for "
                    f"every layer. Columns are prompts: grey frozen, blue active. The stronger the "
                    f"colour, the more weight.",
                    [selection_table(run, stage, routed)],
                    wide=True,
                )
    looked = [stage for stage in run.evidence if stage.routing]
    if run.images and run.stream is not None and looked:
        yield Drawing(
            "routing-images",
            f"The images of {run.domains[0]} whose routing is shown",
            images_figure(run, looked[0].routing[0]),
            f"The images of {run.domains[0]} in the heat maps above, which show class after class.",
        )
    yield variety_table(run)
    yield Drawing(
        "support",
        f"How many prompts an image of {run.stream_name} selects in each layer",
        support_figure(run),
        "Prompts with a weight above 0, mean over the images of all domains so far, in each layer.",
        [support_table(run)],
    )
    yield Drawing(
        "selection-frequency",
        f"How often each prompt of {run.title} is selected",
        frequency_figure(run),
        "The share of images that select a prompt, mean over layers and domains learned. "
        "Grey: frozen, blue: active. A bar of 0 is a prompt that no image needs.",
        [frequency_table(run)],
    )


# ------------------------------------------------------------------ single images


def selection_figure(run: ShownRun, stage: StageEvidence, routed: DomainRouting) -> Figure:
    """One picture of `[images, prompts]` for each layer, in two columns."""
    assert routed.weights is not None
    weights = routed.weights.float().numpy().astype(np.float64)  # [K, L, N]
    images, layers, prompts = weights.shape
    frozen = stage.pool.frozen if stage.pool is not None else 0
    half = -(-layers // 2)
    strongest = float(np.quantile(weights[weights > 0], 0.99)) if (weights > 0).any() else 1.0
    with rc_context(STYLE):
        high = 0.7 + half * min(0.9, max(0.35, 0.035 * images))
        figure = Figure(figsize=(9.0, high))
        figure.set_layout_engine("none")
        below, above = 0.5 / high, 0.1 / high
        for column in range(2):
            axes = figure.add_axes((0.06 + column * 0.5, below, 0.43, 1 - below - above))
            own = range(column * half, min(layers, (column + 1) * half))
            step = images + LAYER_GAP
            picture = np.zeros((half * step - LAYER_GAP, prompts, 4))
            for place, layer in enumerate(own):
                rows = slice(place * step, place * step + images)
                picture[rows] = two_coloured(weights[:, layer], frozen, strongest)
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


def two_coloured(
    weights: NDArray[np.float64], frozen: int, strongest: float
) -> NDArray[np.float64]:
    """Weights `[K, N]` as a picture: grey for frozen prompts, which come first, blue for active."""
    left = veil(weights[:, :frozen], GREY, strongest)
    return np.concatenate([left, veil(weights[:, frozen:], BLUE, strongest)], axis=1)


def selection_table(run: ShownRun, stage: StageEvidence, routed: DomainRouting) -> Table:
    """The strongest prompt of each image and layer."""
    assert routed.weights is not None
    assert routed.shown is not None
    assert routed.shown_classes is not None
    weights = routed.weights.float()
    best, which = weights.max(-1)  # [K, L]
    layers = weights.shape[1]
    return Table(
        f"The strongest prompt of each image after stage {stage.number}, and its weight",
        ["Image", *(f"layer {layer}" for layer in range(layers))],
        [
            [
                f"{run.classes[int(label)]}, test image {int(position)}",
                *(
                    Cell(f"{int(prompt)} ({weight:.3f})", weight)
                    for prompt, weight in zip(row.tolist(), heavy.tolist(), strict=True)
                ),
            ]
            for label, position, row, heavy in zip(
                routed.shown_classes, routed.shown, which, best, strict=True
            )
        ],
    )


def variety(routed: DomainRouting) -> NDArray[np.float64]:
    """How differently two images are routed in each layer `[L]`, mean over all pairs shown.

    Half the sum of the absolute differences of their weights, in shares of one: 0 if all images
    select alike, 1 if no two share a prompt.
    """
    assert routed.weights is not None
    weights = routed.weights.double()
    weights = weights / weights.sum(-1, keepdim=True)
    gaps = torch.stack([torch.cdist(layer, layer, p=1) for layer in weights.unbind(1)])
    pairs = len(weights) * (len(weights) - 1)
    return np.asarray((gaps.sum((1, 2)) / 2 / max(pairs, 1)).numpy())


def variety_table(run: ShownRun) -> Table:
    """A router that answers the same to every image is no router: this tells."""
    rows: list[Sequence[str | Cell]] = []
    for stage in run.evidence:
        for routed in stage.routing:
            if routed.weights is not None:
                values = [Cell(f"{value:.3f}", float(value)) for value in variety(routed)]
                rows.append([f"stage {stage.number}, {run.domains[routed.domain]}", *values])
    layers = len(rows[0]) - 1
    return Table(
        "How differently two images of a domain are routed, mean over pairs: 0 if all images "
        "select alike, 1 if no two share a prompt",
        ["After", *(f"layer {layer}" for layer in range(layers))],
        rows,
        wide=True,
    )


def images_figure(run: ShownRun, routed: DomainRouting) -> Figure:
    """The images of the heat maps, three a row and class."""
    assert run.stream is not None
    assert routed.shown is not None
    assert routed.shown_classes is not None
    split = run.stream.tested[routed.domain].test
    side = min(split.images.shape[-1], THUMBNAIL)
    labels = routed.shown_classes.tolist()
    present = list(dict.fromkeys(labels))
    step = side + GAP
    sheet = np.zeros((step * 3, step * len(present), 4), np.uint8)
    count: dict[int, int] = {}
    for position, label in zip(routed.shown.tolist(), labels, strict=True):
        down = count.get(label, 0)
        count[label] = down + 1
        image = split.images[position : position + 1].float()
        small = F.interpolate(image, (side, side), mode="bicubic", antialias=True)
        tile = small.round().clamp(0, 255).byte()[0].permute(1, 2, 0).numpy()
        across = present.index(label)
        sheet[down * step : down * step + side, across * step : across * step + side, :3] = tile
        sheet[down * step : down * step + side, across * step : across * step + side, 3] = 255
    with rc_context(STYLE):
        # As wide as other figures, so that its letters are as large; few classes leave room.
        inches = min(0.75, WIDTH / len(present))
        figure = Figure(figsize=(WIDTH, 0.4 + 3 * inches))
        axes = figure.add_subplot()
        axes.imshow(sheet, interpolation="none")
        names = [run.classes[label] for label in present]
        slant = 40 if max(map(len, names)) * 0.09 > inches else 0
        axes.set_xticks(
            (np.arange(len(present)) + 0.5) * step,
            labels=names,
            rotation=slant,
            ha="left" if slant else "center",
        )
        axes.set_yticks([])
        axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
    return figure


# ------------------------------------------------------------------ counts


def support(stage: StageEvidence) -> NDArray[np.float64]:
    """Mean number of frozen and of active prompts that an image selects, `[L, 2]`."""
    means = [routed.support.double().mean(0).numpy() for routed in stage.routing]
    return np.asarray(np.mean(means, axis=0), np.float64)


def support_figure(run: ShownRun) -> Figure:
    stages = [stage for stage in run.evidence if stage.routing]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.6 + 1.25 * -(-len(stages) // 2)))
        for place, stage in enumerate(stages, 1):
            axes = figure.add_subplot(-(-len(stages) // 2), 2, place)
            counts = support(stage)
            layers = np.arange(len(counts))
            axes.bar(layers, counts[:, 0], color=GREY, label="frozen")
            axes.bar(layers, counts[:, 1], bottom=counts[:, 0], color=BLUE, label="active")
            axes.set_title(f"after stage {stage.number}", size=9)
            axes.set_xticks(layers)
            axes.tick_params(length=0, labelsize=8)
        figure.supxlabel("layer", size=10)
        figure.supylabel("prompts selected", size=10)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=2)
    return figure


def support_table(run: ShownRun) -> Table:
    rows: list[Sequence[str | Cell]] = []
    stages = [stage for stage in run.evidence if stage.routing]
    for stage in stages:
        counts = support(stage)
        for kind, name in enumerate(("frozen", "active")):
            cells = [Cell(f"{value:.1f}", float(value)) for value in counts[:, kind]]
            rows.append([f"stage {stage.number}, {name}", *cells])
    layers = len(support(stages[0]))
    return Table(
        "Mean number of prompts that an image selects",
        ["Prompts", *(f"layer {layer}" for layer in range(layers))],
        rows,
    )


def frequency(stage: StageEvidence) -> NDArray[np.float64]:
    """The share of images that select each prompt `[N]`, mean over layers and domains."""
    return np.asarray(np.mean([r.frequency.numpy() for r in stage.routing], axis=(0, 1)))


def frequency_figure(run: ShownRun) -> Figure:
    stages = [stage for stage in run.evidence if stage.routing]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.5 + 1.0 * len(stages)))
        for place, stage in enumerate(stages, 1):
            axes = figure.add_subplot(len(stages), 1, place)
            shares = frequency(stage)
            frozen = stage.pool.frozen if stage.pool is not None else 0
            # Steps, not bars: one path each instead of hundreds of rectangles.
            edges = np.arange(len(shares) + 1) - 0.5
            axes.stairs(shares[:frozen], edges[: frozen + 1], fill=True, color=GREY)
            axes.stairs(shares[frozen:], edges[frozen:], fill=True, color=BLUE)
            axes.set_title(f"after stage {stage.number}", size=9)
            axes.set_ylim(0, 1.02)
            axes.set_xlim(-0.5, len(frequency(stages[-1])) - 0.5)
        figure.supxlabel("prompt", size=10)
        figure.supylabel("share of images", size=10)
    return figure


def frequency_table(run: ShownRun) -> Table:
    rows: list[Sequence[str | Cell]] = []
    for stage in (stage for stage in run.evidence if stage.routing):
        shares = frequency(stage)
        frozen = stage.pool.frozen if stage.pool is not None else 0
        for name, part in (("frozen", shares[:frozen]), ("active", shares[frozen:])):
            if len(part):
                never = int((part == 0).sum())
                rows.append(
                    [
                        f"stage {stage.number}, {name}",
                        Cell(str(len(part)), len(part)),
                        *(
                            Cell(f"{v:.3f}", float(v))
                            for v in (part.min(), part.mean(), part.max())
                        ),
                        Cell(str(never), never),
                    ]
                )
    return Table(
        "How often prompts are selected",
        ["Prompts", "Number", "Least", "Mean", "Most", "Never selected"],
        rows,
    )
