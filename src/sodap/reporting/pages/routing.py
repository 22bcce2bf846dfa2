"""Section on routing: which prompts images select, and how similar prompts are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from sodap.reporting.figures import images as image_figures
from sodap.reporting.figures import prompts as figures
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, FigureBlock, Paragraph, Section
from sodap.reporting.tables.table import Cell, Row, Table, number_cell, number_table, score_cell
from sodap.runs.evidence import DomainRouting, StageEvidence


def routing_section(run: LoadedRun) -> Section | None:
    """Section on routing; None for a method without prompts."""
    blocks = [*_selections(run), *_similarity(run)]
    if not blocks and any(stage.ended.pool is not None for stage in run.stages):
        blocks = [Paragraph("There is nothing to show: the run has no evidence.", "note")]
    return Section("routing", "Prompt routing", blocks) if blocks else None


def _selections(run: LoadedRun) -> Iterator[Block]:
    stages = [stage for stage in run.evidence if stage.routing]
    if not stages:
        return
    yield Paragraph(
        "At each layer an image selects prompts from the pool, separately among the frozen and "
        "the active ones; the weights of each set sum to 1. The images are the same for every "
        "method and seed."
    )
    for stage, routed in _drawn(stages):
        assert routed.weights is not None
        domain = run.domains[routed.domain]
        yield FigureBlock(
            f"routing-stage-{stage.number}-domain-{routed.domain + 1}",
            f"Prompts that single images of {domain} select after stage {stage.number} of "
            f"{run.title}",
            figures.selections(routed.weights, figures.frozen_prompts(stage)),
            f"After stage {stage.number} ({run.domains[stage.number - 1]}), for test images of "
            f"{domain}: one row per image, up to three per class, repeated for each layer. Columns "
            f"are prompts, grey frozen and blue active; stronger colours have more weight.",
            [selection_table(run, stage, routed)],
            wide=True,
        )
    if run.show_images and run.stream is not None:
        routed = stages[0].routing[0]
        yield FigureBlock(
            "routing-images",
            f"The images of {run.domains[0]} whose routing is shown",
            image_figures.routed_images(run.stream.tested[routed.domain].test, routed, run.classes),
            f"The images of {run.domains[0]} in the heat maps above, which are sorted by class.",
        )
    yield variety_table(run)
    yield FigureBlock(
        "support",
        f"How many prompts an image of {run.stream_name} selects in each layer",
        figures.selection_counts(stages),
        "Prompts with a weight above 0 in each layer, averaged over images of the domains so far.",
        [counts_table(stages)],
    )
    yield FigureBlock(
        "selection-frequency",
        f"How often each prompt of {run.title} is selected",
        figures.selection_frequencies(stages),
        "Share of images that select a prompt, averaged over layers and learned domains. Grey: "
        "frozen, blue: active. A prompt at 0 is never selected.",
        [frequency_table(stages)],
    )


def _drawn(stages: Sequence[StageEvidence]) -> Iterator[tuple[StageEvidence, DomainRouting]]:
    """The new domain after every stage, and the first domain after the last stage."""
    for stage in stages:
        for routed in stage.routing:
            new = routed.domain == stage.number - 1
            first_at_end = stage is stages[-1] and routed.domain == 0
            if routed.weights is not None and (new or first_at_end):
                yield stage, routed


def selection_table(run: LoadedRun, stage: StageEvidence, routed: DomainRouting) -> Table:
    """The prompt with the most weight, for each image and layer."""
    assert routed.weights is not None
    assert routed.shown is not None
    assert routed.shown_classes is not None
    weights, prompts = routed.weights.float().max(-1)  # [K, L]
    rows: list[Row] = []
    for label, position, chosen, most in zip(
        routed.shown_classes, routed.shown, prompts.tolist(), weights.tolist(), strict=True
    ):
        cells = [Cell(f"{p} ({w:.3f})", w) for p, w in zip(chosen, most, strict=True)]
        rows.append([f"{run.classes[int(label)]}, test image {int(position)}", *cells])
    return Table(
        f"Prompt with the most weight for each image after stage {stage.number}",
        ["Image", *_layers(weights.shape[1])],
        rows,
    )


def _layers(count: int) -> list[str]:
    return [f"layer {layer}" for layer in range(count)]


def variety(routed: DomainRouting) -> NDArray[np.float64]:
    """How differently images are routed in each layer `[L]`, averaged over pairs of images.

    Half the L1 distance of their normalised weights: 0 if all images select the same prompts, 1 if
    no two share a prompt.
    """
    assert routed.weights is not None
    weights = routed.weights.double()
    weights = weights / weights.sum(-1, keepdim=True)
    gaps = torch.stack([torch.cdist(layer, layer, p=1) for layer in weights.unbind(1)])
    pairs = len(weights) * (len(weights) - 1)
    return np.asarray((gaps.sum((1, 2)) / 2 / max(pairs, 1)).numpy())


def variety_table(run: LoadedRun) -> Table:
    found = {
        f"stage {stage.number}, {run.domains[routed.domain]}": variety(routed).tolist()
        for stage in run.evidence
        for routed in stage.routing
        if routed.weights is not None
    }
    return number_table(
        "How differently two images of a domain are routed, averaged over pairs: 0 if all images "
        "select the same prompts, 1 if no two share a prompt",
        ["After", *_layers(len(next(iter(found.values()))))],
        list(found),
        found.values(),
        wide=True,
    )


def counts_table(stages: Sequence[StageEvidence]) -> Table:
    found = {
        f"stage {stage.number}, {name}": figures.selected_prompts(stage)[:, kind].tolist()
        for stage in stages
        for kind, name in enumerate(("frozen", "active"))
    }
    return number_table(
        "Mean number of prompts that an image selects",
        ["Prompts", *_layers(len(next(iter(found.values()))))],
        list(found),
        found.values(),
        partial(number_cell, form=".1f"),
    )


def frequency_table(stages: Sequence[StageEvidence]) -> Table:
    rows: list[Row] = []
    for stage in stages:
        shares, frozen = figures.selection_frequency(stage), figures.frozen_prompts(stage)
        for name, part in (("frozen", shares[:frozen]), ("active", shares[frozen:])):
            if len(part):
                numbers = [float(part.min()), float(part.mean()), float(part.max())]
                rows.append(
                    [
                        f"stage {stage.number}, {name}",
                        number_cell(len(part)),
                        *map(score_cell, numbers),
                        number_cell(int((part == 0).sum())),
                    ]
                )
    return Table(
        "How often prompts are selected",
        ["Prompts", "Number", "Least", "Mean", "Most", "Never selected"],
        rows,
    )


# ------------------------------------------------------------------ similarity


def _similarity(run: LoadedRun) -> Iterator[FigureBlock]:
    stages = [stage for stage in run.evidence if stage.similarity is not None]
    if stages:
        yield FigureBlock(
            "prompt-similarity",
            f"Cosine similarity of the prompts of {run.title} after each stage",
            figures.similarity(stages),
            "Cosine similarity of all pairs of prompts after each stage: blue is positive, orange "
            "negative, clear 0. Lines separate prompts of different stages.",
            [similarity_table(stages)],
            wide=len(stages) > 3,
        )


def similarity_table(stages: Sequence[StageEvidence]) -> Table:
    """Mean absolute cosine of different prompts: among frozen, among active, and between them."""
    values = []
    for stage in stages:
        found, frozen = np.abs(figures.cosines(stage)), figures.frozen_prompts(stage)
        different = ~np.eye(len(found), dtype=bool)
        old, new = slice(frozen), slice(frozen, None)
        parts = [found[part][different[part]] for part in ((old, old), (new, new), (old, new))]
        means = [float(part.mean()) if part.size else None for part in parts]
        values.append([*means, float(found[different].max()) if len(found) > 1 else None])
    return number_table(
        "Mean absolute cosine of two different prompts",
        ["After", "Among frozen", "Among active", "Frozen and active", "Largest of all"],
        [f"stage {stage.number}" for stage in stages],
        values,
    )
