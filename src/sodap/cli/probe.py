"""`sodap probe`: what routing, memory and prompts of a trained model do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sodap.bars import Bars
from sodap.errors import SodapError
from sodap.formats import MISSING, plural
from sodap.learning import load
from sodap.probing import Finding, ProbeResult, describe, inert_parts
from sodap.probing.result import Effect, Part
from sodap.runs.config import RunConfig
from sodap.runs.probes import ProbedRun, SplitName, probe_model, probe_run, probes_while_learning
from sodap.runs.reading import checked
from sodap.runs.stream import load_run_stream
from sodap.storage import read_json
from sodap.streams import Stream, load_stream

SPLITS: dict[SplitName, str] = {"val": "validation", "test": "test"}

SHORT: dict[Part, str] = {
    "image dependence": "mean routing",
    "active prompts": "active = 0",
    "all prompts": "all = 0",
    "memory slots": "one slot",
}
CAPTION = (
    "mean routing: all images get it; active, all = 0: prompts of the last stage, or all; "
    "one slot: the mean of all slots. Answers that change, and change of accuracy in points."
)


def run_probe(
    console: Console,
    place: Path,
    *,
    stream: str | None,
    data: str | None,
    split: str,
    images: int,
    layers: bool,
    as_json: bool,
) -> None:
    """Probe the run or the model at `place`, and print what was found."""
    if split not in SPLITS:
        raise SodapError(f"--split takes {' or '.join(SPLITS)}, not '{split}'")
    name: SplitName = "val" if split == "val" else "test"
    if place.is_file():
        raise SodapError(f"{place} is a file; give the folder of a run or of a model")
    if (place / "config.json").is_file():
        if stream is not None:
            raise SodapError(f"{place} is a run, which names its stream itself; leave out --stream")
        probed = _probe_run(console, place, name, images, layers)
        if as_json:
            _print_json(probed.model_dump(mode="json"))
        else:
            show_probes(console, probed, layers=layers)
        return
    if stream is None:
        raise SodapError(f"{place} is no run; to probe a model, name images with --stream STREAM")
    learner = load(place)
    size = learner.method.backbone.image_size
    loaded = load_stream(stream, size, data=data, classes=learner.classes, ranges=learner.ranges)
    if loaded.classes != tuple(learner.classes):
        raise SodapError(f"the classes of {stream} are not those of the model in {place}")
    found = probe_model(learner, loaded, name, images, by_layer=layers)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        _show_result(console, found, f"{place}, on {SPLITS[name]} images", layers=layers)


def _probe_run(
    console: Console, folder: Path, split: SplitName, images: int, layers: bool
) -> ProbedRun:
    path = folder / "config.json"
    config = checked(RunConfig, read_json(path), path, "configuration")
    with Bars(console) as bars:
        progress = bars.progress
        bar = progress.add_task("reading images", total=None, note="")

        def on_progress(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        stream: Stream = load_run_stream(config, folder, on_progress)
        progress.update(bar, description="probing stages", completed=0, total=None)
        return probe_run(
            folder,
            stream,
            split=split,
            images=images,
            by_layer=layers,
            on_progress=on_progress,
        )


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2))


# ------------------------------------------------------------------ on the terminal


def show_probes(console: Console, probed: ProbedRun, *, layers: bool) -> None:
    """Print all stages as a table, and the last one in words."""
    last = probed.stages[-1]
    if len(probed.stages) > 1:
        console.print(_stage_table(probed))
    title = f"After stage {last.stage} ({last.domain}), on {SPLITS[probed.split]} images"
    _show_result(console, last.result, title, layers=layers)


def _show_result(console: Console, result: ProbeResult, title: str, *, layers: bool) -> None:
    domains = plural(len(result.domains), "domain")
    console.print(
        f"{title}: {plural(result.images, 'image')} of {domains}, accuracy {result.accuracy:.3f}",
        markup=False,
        highlight=False,
    )
    for finding in describe(result):
        _show_finding(console, finding)
    console.print(_domain_table(result))
    if layers:
        console.print(_layer_table(result))


def _show_finding(console: Console, finding: Finding) -> None:
    mark = "!" if finding.inert else "-"
    console.print(f" {mark} {finding.text}", markup=False, highlight=False, soft_wrap=True)


def _table(title: str, heads: Iterable[str]) -> Table:
    """A table without lines, so that it fits a narrow terminal."""
    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    return table


def _stage_table(probed: ProbedRun) -> Table:
    removals = [part for part in SHORT if any(s.result.removal(part) for s in probed.stages)]
    heads = ("stage", "variety", "used", "slots", *(SHORT[part] for part in removals))
    table = _table("Probes by stage", heads)
    table.caption = CAPTION
    for each in probed.stages:
        result = each.result
        keys = result.memory.keys if result.memory is not None else None
        table.add_row(
            escape(f"{each.stage} {each.domain}"),
            _decimal(result.variety.images),
            f"{result.support:.0f}/{result.prompts}",
            _decimal(None if keys is None else keys.mean),
            *(_effect(result, part) for part in removals),
        )
    return table


def _effect(result: ProbeResult, part: Part, layer: int | None = None) -> str:
    removal = result.removal(part, layer)
    if removal is None:
        return MISSING
    return _effect_text(removal.effect)


def _effect_text(effect: Effect) -> str:
    points = round(100 * effect.accuracy, 1) + 0.0  # never -0.0
    return f"{100 * effect.changed:.1f}%/{points:+.1f}"


def _domain_table(result: ProbeResult) -> Table:
    whole = [removal for removal in result.removals if removal.layer is None]
    removed = (SHORT[removal.part] for removal in whole)
    table = _table("By domain", ("domain", "acc.", "variety", "used", *removed))
    for index, domain in enumerate(result.domains):
        effects = [removal.domains[index] for removal in whole]
        table.add_row(
            escape(domain.name),
            f"{domain.accuracy:.3f}",
            _decimal(domain.variety.images),
            f"{domain.support:.0f}",
            *map(_effect_text, effects),
        )
    return table


def _layer_table(result: ProbeResult) -> Table:
    parts = [part for part in SHORT if result.removal(part)]
    heads = ("layer", "variety", "classes", "domains", "used", "read")
    table = _table("By layer", (*heads, *(SHORT[part] for part in parts)))
    for number, layer in enumerate(result.layers):
        read = layer.retrieved_spread
        table.add_row(
            str(number),
            _decimal(layer.variety.images),
            _decimal(layer.variety.classes),
            _decimal(layer.variety.domains),
            f"{layer.support:.0f}",
            MISSING if read is None else f"{100 * read:.1f}%",
            *(_effect(result, part, number) for part in parts),
        )
    return table


def _decimal(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


# ------------------------------------------------------------------ after a run


def warn_of_inert_parts(folder: Path) -> None:
    """Say on standard error which parts of a finished run's model do nothing."""
    probed = probes_while_learning(folder)
    if probed is None:
        return
    for finding in inert_parts(probed.stages[-1].result):
        print(f"sodap: warning: {finding.text}", file=sys.stderr)
