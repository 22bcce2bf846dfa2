"""Section on probes: what routing, memory and prompts do for the answers."""

from __future__ import annotations

from collections.abc import Iterator

from sodap.errors import SodapError
from sodap.formats import MISSING
from sodap.probing import ProbeResult, describe
from sodap.probing.result import Effect, Part
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, Paragraph, Section
from sodap.reporting.tables.table import Cell, Row, Table, number_cell, score_cell
from sodap.runs.probes import ProbedRun, ProbedStage, read_probes

NAMES: dict[Part, str] = {
    "image dependence": "Same routing for all images",
    "active prompts": "Without prompts of the last stage",
    "all prompts": "Without any prompts",
    "memory slots": "One memory slot",
}


def probes_section(run: LoadedRun) -> Section | None:
    """Section on probes; None for a method without routing, and for a run without evidence."""
    if run.folder is None or not run.stages:
        return None
    try:
        probed = read_probes(run.folder)
    except SodapError as error:
        blocks: list[Block] = [Paragraph(f"The probes cannot be read: {error}.", "note")]
        return Section("probes", "What routing does", blocks)
    if probed is None:
        return None
    return Section("probes", "What routing does", list(_blocks(probed)))


def _blocks(probed: ProbedRun) -> Iterator[Block]:
    last = probed.stages[-1]
    kind = "validation" if probed.split == "val" else "test"
    yield Paragraph(
        f"Parts of the model are taken away without training it again, and the answers that change "
        f"are counted. After stage {last.stage} ({last.domain}), on {last.result.images:,} {kind} "
        f"images of the domains so far:"
    )
    for finding in describe(last.result):
        yield Paragraph(finding.text, "warning" if finding.inert else "plain")
    yield stage_table(probed.stages)
    yield domain_table(last.result)
    yield layer_table(last.result)
    yield Paragraph(
        "Variety is the mean distance between the routings of two images, classes or domains, from "
        "0 (the same weights) to 1 (no prompt in common). `sodap probe RUN --layers` also takes "
        "parts away in single layers, on more images.",
        "note",
    )


def stage_table(stages: list[ProbedStage]) -> Table:
    """One row per stage."""
    parts = _parts([each.result for each in stages])
    rows: list[Row] = [
        [
            f"{each.stage} {each.domain}",
            score_cell(each.result.variety.images),
            score_cell(each.result.variety.classes),
            score_cell(each.result.variety.domains),
            number_cell(each.result.support, ".1f"),
            number_cell(each.result.prompts),
            score_cell(_slot_cosine(each.result)),
            *(effect_cell(_effect(each.result, part)) for part in parts),
        ]
        for each in stages
    ]
    heads = ["Stage", *_VARIETY, "Used", "Prompts", "Slot cosine", *(NAMES[p] for p in parts)]
    return Table(f"Probes after each stage; {_EFFECT}", heads, rows, wide=True)


def domain_table(result: ProbeResult) -> Table:
    """One row per domain, after the last stage."""
    whole = [removal for removal in result.removals if removal.layer is None]
    rows: list[Row] = [
        [
            domain.name,
            number_cell(domain.images),
            score_cell(domain.accuracy),
            score_cell(domain.variety.images),
            number_cell(domain.support, ".1f"),
            *(effect_cell(removal.domains[index]) for removal in whole),
        ]
        for index, domain in enumerate(result.domains)
    ]
    removed = (NAMES[removal.part] for removal in whole)
    heads = ["Domain", "Images", "Accuracy", "Variety of images", "Used", *removed]
    return Table(f"After the last stage, by domain; {_EFFECT}", heads, rows, wide=True)


def layer_table(result: ProbeResult) -> Table:
    """One row per layer, after the last stage."""
    parts = [part for part in NAMES if result.removal(part, 0) is not None]
    rows: list[Row] = [
        [
            str(number),
            score_cell(layer.variety.images),
            score_cell(layer.variety.classes),
            score_cell(layer.variety.domains),
            number_cell(layer.support, ".1f"),
            score_cell(layer.retrieved_spread),
            *(effect_cell(_effect(result, part, number)) for part in parts),
        ]
        for number, layer in enumerate(result.layers)
    ]
    heads = ["Layer", *_VARIETY, "Used", "Spread of what is read", *(NAMES[p] for p in parts)]
    return Table("After the last stage, by layer", heads, rows, wide=True)


_VARIETY = ("Variety of images", "of classes", "of domains")
_EFFECT = "changed answers, and change of accuracy in points"


def effect_cell(effect: Effect | None) -> Cell:
    """Changed answers and change of accuracy; sorts by the former."""
    if effect is None:
        return Cell(MISSING)
    points = round(100 * effect.accuracy, 1) + 0.0  # never -0.0
    return Cell(f"{100 * effect.changed:.1f} %, {points:+.1f}", effect.changed)


def _parts(results: list[ProbeResult]) -> list[Part]:
    return [part for part in NAMES if any(result.removal(part) for result in results)]


def _effect(result: ProbeResult, part: Part, layer: int | None = None) -> Effect | None:
    removal = result.removal(part, layer)
    return None if removal is None else removal.effect


def _slot_cosine(result: ProbeResult) -> float | None:
    memory = result.memory
    return None if memory is None or memory.keys is None else memory.keys.mean
