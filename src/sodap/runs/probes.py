"""Probes of a finished run, stage by stage, kept in its folder.

FOLDER/evidence/probe-val.json    what routing, memory and prompts do on validation images
FOLDER/evidence/probe-test.json   the same on test images

A run also probes itself after each stage, on fewer images (see `sodap.runs.evidence`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from torch import Tensor

from sodap.errors import SodapError
from sodap.learning import Learner, load
from sodap.probing import ProbeResult, probe
from sodap.probing.probe import IMAGES
from sodap.runs.evidence import read_evidence
from sodap.runs.reading import checked, read_record
from sodap.runs.record import Schema
from sodap.storage import has_state, load_state, read_json, write_json
from sodap.streams import Split, Stream

FORMAT = 1
"""Format number of the file."""

SplitName = Literal["val", "test"]


class ProbedStage(Schema):
    """The model after one stage."""

    stage: int
    domain: str
    result: ProbeResult


class ProbedRun(Schema):
    """Content of `evidence/probe-val.json` or `evidence/probe-test.json`."""

    format: int = FORMAT
    split: SplitName
    images_per_domain: int
    """Largest number of images per domain."""
    stages: list[ProbedStage]
    """Stages whose models are stored; the last one always is."""
    seconds: float


def probe_run(
    folder: Path,
    stream: Stream,
    *,
    split: SplitName = "val",
    images: int = IMAGES,
    by_layer: bool = False,
    device: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ProbedRun:
    """Probe every stored model of a finished run on the domains learned so far; keep the result.

    The images are at most `images` of each domain. With `by_layer` parts are also taken away in
    one layer at a time.
    """
    began = time.perf_counter()
    record = read_record(folder / "record.json")
    config = record.config
    learner = load(folder, device=device or config.device, precision=config.precision)
    states = list(_stored_models(folder, len(record.stages)))
    found: list[ProbedStage] = []
    for done, (stage, state) in enumerate(states, start=1):
        learner.restore(state, stage, stage)
        result = probe_model(learner, stream, split, images, by_layer=by_layer, domains=stage)
        name = record.stages[stage - 1].domain
        found.append(ProbedStage(stage=stage, domain=name, result=result))
        if on_progress is not None:
            on_progress(done, len(states))
    probed = ProbedRun(
        split=split,
        images_per_domain=images,
        stages=found,
        seconds=time.perf_counter() - began,
    )
    write_json(_file(folder, split), probed.model_dump(mode="json"))
    return probed


def probe_model(
    learner: Learner,
    stream: Stream,
    split: SplitName = "val",
    images: int = IMAGES,
    *,
    by_layer: bool = False,
    domains: int | None = None,
) -> ProbeResult:
    """Probe a model on the first `domains` domains of a stream, by default on all."""
    splits: dict[str, Split] = {
        domain.name: domain.val if split == "val" else domain.test
        for domain in stream.domains[:domains]
    }
    result = probe(learner, splits, images=images, by_layer=by_layer)
    if result is None:
        raise no_routing(learner)
    return result


def no_routing(learner: Learner) -> SodapError:
    return SodapError(
        f"{learner.method_name} does not route images to prompts or experts, so there is nothing "
        f"to probe"
    )


def read_probes(folder: Path) -> ProbedRun | None:
    """What `probe_run` kept, preferably of validation images; else what the run measured itself.

    None for a run without either.
    """
    for path in probe_files(folder):
        if path.is_file():
            return checked(ProbedRun, read_json(path), path, "probe")
    return probes_while_learning(folder)


def probes_while_learning(folder: Path) -> ProbedRun | None:
    """What a run measured after each of its stages; None if it has no routing or no evidence."""
    stages = [
        ProbedStage(stage=each.info.stage, domain=each.info.domain, result=each.info.probe)
        for each in read_evidence(folder, stages=1_000_000)
        if each.info.probe is not None
    ]
    if not stages:
        return None
    largest = max(domain.images for each in stages for domain in each.result.domains)
    return ProbedRun(split="val", images_per_domain=largest, stages=stages, seconds=0.0)


def probe_files(folder: Path) -> list[Path]:
    """Files that `probe_run` may have written, those of validation images first."""
    return [_file(folder, split) for split in ("val", "test")]


def _file(folder: Path, split: str) -> Path:
    return folder / "evidence" / f"probe-{split}.json"


def _stored_models(folder: Path, stages: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Stage and state of every model that the run has stored."""
    for number in range(1, stages):
        home = folder / "stages" / str(number)
        if has_state(home, "model"):
            yield number, load_state(home, "model")[0]
    yield stages, load_state(folder / "model", "model")[0]
