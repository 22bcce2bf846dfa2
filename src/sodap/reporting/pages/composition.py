"""Section on cross-composition: does the representation or the head forget?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sodap.evaluation import effects, mean_effects
from sodap.reporting.figures import composition as figures
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, FigureBlock, Paragraph, Section
from sodap.reporting.tables.table import Row, Table, change_cell, number_table, score_cell
from sodap.runs.composition import Composition


def composition_section(run: LoadedRun) -> Section:
    return Section("composition", "Which part forgets", list(_blocks(run)))


def _blocks(run: LoadedRun) -> Iterator[Block]:
    yield Paragraph(
        "The model is divided into B, everything before the head, and C, the head. The B of every "
        "stage is tested with the C of every stage. A lower accuracy than with the pair of the "
        "domain's own stage shows which part changed. Parts that were not trained together may "
        "also not fit, which counts as a loss too."
    )
    found = run.composition
    if found is None:
        reason = f": {run.no_composition}" if run.no_composition else ""
        hint = "" if reason else " `sodap report RUN --compose` measures it."
        yield Paragraph(f"It was not measured{reason}.{hint}", "note")
        return
    if found.deviation > 0:
        yield Paragraph(
            f"It was measured on another device than the run. The accuracy of the same models "
            f"differs by up to {found.deviation:.3f}.",
            "note",
        )
    yield FigureBlock(
        "cross-composition",
        f"Accuracy of every representation with every head of {run.title}",
        figures.compositions(found, run.domains),
        "Accuracy on each domain with the representation B (rows) and the head C (columns) of each "
        "stage. The diagonal is R.",
        list(composition_tables(found, run.domains)),
        wide=len(run.domains) > 3,
    )
    if len(found.accuracy) > 1:
        changes = effects(found.accuracy)
        yield FigureBlock(
            "forgetting-parts",
            f"Effect of representation and head of {run.title} on each old domain",
            figures.effects(changes, run.domains),
            "Change of accuracy from a domain's own stage to the last: by the new representation "
            "with the old head, by the new head on the old representation, by their interaction, "
            "and by both. Negative is a loss.",
            [effects_table(run)],
        )
    yield FigureBlock(
        "probes",
        f"Accuracy of linear probes on the representations of {run.title}",
        figures.probes(found, run.domains),
        "Control: accuracy of a new linear head on the representation of each stage, fitted to "
        "training images of the same domain (left) or of all domains (right). What it finds is not "
        "lost from the representation.",
        [probe_table(found, run.domains)],
    )


def composition_tables(found: Composition, domains: list[str]) -> Iterator[Table]:
    A = np.array(found.accuracy)  # [T, T, D]
    stages = domains[: len(A)]
    for domain, name in enumerate(domains):
        yield number_table(
            f"{name}: accuracy of B (rows) with C (columns)",
            ["", *(f"C{j} {stage}" for j, stage in enumerate(stages, 1))],
            [f"B{i} {stage}" for i, stage in enumerate(stages, 1)],
            A[:, :, domain].tolist(),
        )


def effects_table(run: LoadedRun) -> Table:
    assert run.composition is not None
    found = effects(run.composition.accuracy)
    rows: list[Row] = [
        [
            run.domains[each.domain],
            score_cell(each.then),
            *(change_cell(getattr(each, part)) for part in figures.PARTS),
        ]
        for each in found
    ]
    mean = mean_effects(found)
    if mean is not None:
        rows.append(["mean", "", *(change_cell(mean[part], bold=True) for part in figures.PARTS)])
    return Table(
        "From a domain's own stage to the last", ["Domain", "Accuracy then", *figures.PARTS], rows
    )


def probe_table(found: Composition, domains: list[str]) -> Table:
    names = domains[: len(found.probe.own[0])]
    return number_table(
        "Accuracy of linear probes (ridge regression)",
        ["Representation", *(f"{name}, {fit}" for fit in ("own", "all") for name in names)],
        [f"B{stage} {name}" for stage, name in enumerate(domains[: len(found.probe.own)], 1)],
        [own + joint for own, joint in zip(found.probe.own, found.probe.joint, strict=True)],
    )
