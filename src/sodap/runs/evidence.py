"""Data that a run writes for its report, measured at the end of each stage.

FOLDER/evidence/stage-N.json      which stage it is, and how large the pool was
FOLDER/evidence/stage-N-*         tensors: predictions on test images, routing, prompt similarity
FOLDER/stages/N/                  the model after stage N, if it is small; the last is FOLDER/model
FOLDER/steps/stage-N.json, -*     losses and learned weights of every training step

Predictions and confidences come from the evaluation of the run. Routing takes one more pass over
some test images of each domain learned so far, and a probe a few over some validation images. No
image is written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.execution import ClassPredictions
from sodap.learning import Learner, StageProgress
from sodap.learning.trace import Trace
from sodap.methods import Method
from sodap.probing import ProbeResult, probe
from sodap.randomness import Randomness
from sodap.runs.reading import checked
from sodap.runs.record import PoolInfo, Schema
from sodap.runs.writer import PendingWrite
from sodap.storage import has_state, load_state
from sodap.streams import Domain, Split, Stage

ROUTED_IMAGES = 100
"""Test images per domain whose routing is averaged, as in the paper's Fig. 5."""

SHOWN_PER_CLASS = 3
"""Images per class whose routing is stored one by one."""

SHOWN_CLASSES = 10
"""Classes whose images are stored one by one; a heat map of more is hard to read."""

PROBED_IMAGES = 128
"""Validation images, over all domains so far, of the probe after each stage: few, so that it takes
less time than testing. `sodap probe` looks at more."""

MAX_MODEL_BYTES = 64_000_000
"""Largest model that is stored after each stage; a trained ViT-B would soon fill a disk."""


class EvidenceInfo(Schema):
    """Metadata of FOLDER/evidence/stage-N."""

    stage: int
    domain: str
    pool: PoolInfo | None
    looked_at: int
    """Largest number of test images per domain whose routing is averaged."""
    seconds: float
    probe: ProbeResult | None = None
    """What routing, memory and prompts do on validation images; None for a method without them."""


class StepsInfo(Schema):
    """Metadata of FOLDER/steps/stage-N."""

    stage: int
    epochs: int
    steps: int


# ------------------------------------------------------------------ writing


def pending_evidence(
    folder: Path,
    learner: Learner,
    stage: Stage,
    tested: Sequence[Domain],
    predictions: Sequence[ClassPredictions],
    pool: PoolInfo | None,
) -> PendingWrite:
    """FOLDER/evidence/stage-N, with the predictions on the test images of each domain."""
    began = time.perf_counter()
    tensors: dict[str, Tensor] = {}
    for index, (domain, found) in enumerate(zip(tested, predictions, strict=True)):
        tensors |= prediction_tensors(index, domain.test, found)
    for index, domain in enumerate(tested[: stage.number]):
        drawn = index in (0, stage.number - 1)  # an old domain and the new one
        tensors |= {
            f"{name}.{index}": value
            for name, value in _routing_of(learner, domain.test, drawn).items()
        }
    similarity = prompt_similarity(learner.method)
    if similarity is not None:
        tensors["similarity"] = similarity.half()
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    info = EvidenceInfo(
        stage=stage.number,
        domain=stage.domain.name,
        pool=pool,
        looked_at=ROUTED_IMAGES,
        probe=probe(
            learner,
            {domain.name: domain.val for domain in tested[: stage.number]},
            images=max(1, PROBED_IMAGES // stage.number),
        ),
        seconds=time.perf_counter() - began,
    )
    name = f"stage-{stage.number}"
    return PendingWrite(folder / "evidence", name, tensors, info.model_dump(mode="json"))


def prediction_tensors(index: int, test: Split, found: ClassPredictions) -> dict[str, Tensor]:
    """Predictions on the test images of the domain with this index."""
    return {
        f"answers.{index}": found.classes.to(torch.int16),
        f"confidence.{index}": found.confidence,
        f"labels.{index}": test.labels.to("cpu", torch.int16),
    }


def sampled_images(split: Split, classes: int) -> tuple[Tensor, Tensor]:
    """Positions of images whose routing is averaged, and of those stored one by one.

    They depend only on the size of the split and its labels, so they are the same for every method
    and seed.
    """
    order = torch.randperm(len(split), generator=Randomness(0).generator("evidence"))
    labels = split.labels.cpu()[order]
    drawn = [
        order[labels == label][:SHOWN_PER_CLASS] for label in range(min(classes, SHOWN_CLASSES))
    ]
    return order[:ROUTED_IMAGES], torch.cat(drawn)


@torch.inference_mode()
def _routing_of(learner: Learner, split: Split, drawn: bool) -> dict[str, Tensor]:
    """How often images of a split select each prompt, on average and one by one."""
    counted, shown = sampled_images(split, len(learner.classes))
    extra = shown[~torch.isin(shown, counted)] if drawn else shown[:0]
    sampled = torch.cat([counted, extra])  # one pass for both
    found = learner.forward.routing(split.images[sampled])
    if found is None:
        return {}
    weights = torch.stack([r.weights for r in found], 1)  # [B, L, N], every set sums to 1
    some = slice(len(counted))
    support = [
        torch.stack([(chosen > 0).sum(-1) for chosen in part], 1)
        for part in ([r.frozen[some] for r in found], [r.active[some] for r in found])
    ]
    tensors = {
        "frequency": (weights[some] > 0).float().mean(0),  # [L, N]
        "usage": torch.stack([r.joined[some].mean(0) for r in found]),  # [L, N]
        "support": torch.stack(support, -1).to(torch.int16),  # [B, L, 2]
    }
    if drawn:
        place = {position: row for row, position in enumerate(sampled.tolist())}
        tensors["shown"] = shown
        tensors["shown_classes"] = split.labels[shown]
        tensors["weights"] = weights[[place[position] for position in shown.tolist()]].half()
    return tensors


@torch.no_grad()
def prompt_similarity(method: Method) -> Tensor | None:
    """Cosine similarity of all prompts in use, `[N, N]`; None for a method without a pool.

    If every layer has a pool of its own, the mean over layers.
    """
    values = method.prompt_values()
    if values is None:
        return None
    rows = F.normalize(values.float(), dim=-1)  # [copies, N, d]
    return (rows @ rows.mT).mean(0)


def pending_model(folder: Path, learner: Learner, number: int) -> list[PendingWrite]:
    """The model after a stage, for cross-composition; nothing if it is too large."""
    state = learner.method.state()
    if sum(tensor.nbytes for tensor in state.values()) > MAX_MODEL_BYTES:
        return []
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
    return [PendingWrite(folder / "stages" / str(number), "model", copies, learner.metadata())]


def pending_steps(folder: Path, progress: StageProgress) -> list[PendingWrite]:
    """FOLDER/steps/stage-N; nothing before the first step.

    Takes 4 bytes a number, so a few MB for a hundred thousand steps.
    """
    if not len(progress.trace):
        return []
    info = StepsInfo(stage=progress.stage, epochs=progress.epoch, steps=len(progress.trace))
    name, tensors = f"stage-{progress.stage}", progress.trace.tensors()
    return [PendingWrite(folder / "steps", name, tensors, info.model_dump(mode="json"))]


# ------------------------------------------------------------------ reading


def read_steps(folder: Path, log: Sequence[tuple[int, int]]) -> dict[int, Trace]:
    """Training steps by stage; empty if the steps of an epoch are missing.

    `log` lists stage and epoch of every line of `log.jsonl`. A crash may have lost lines whose
    steps are on disk: these epochs are left out, because they will be computed again.
    """
    found: dict[int, Trace] = {}
    for stage in dict.fromkeys(stage for stage, _ in log):
        if not has_state(folder / "steps", f"stage-{stage}"):
            return {}
        epochs = [epoch for of_stage, epoch in log if of_stage == stage]
        tensors, _ = load_state(folder / "steps", f"stage-{stage}")
        trace = Trace.from_tensors(tensors).select(*epochs)
        if set(trace.epoch.tolist()) != set(epochs):
            return {}
        found[stage] = trace
    return found


@dataclass(frozen=True)
class DomainRouting:
    """Routing of test images of one domain after a stage."""

    domain: int
    frequency: Tensor
    """Share of images that select a prompt, `[L, N]`."""
    usage: Tensor
    """Mean weight of a prompt, `[L, N]`; every layer sums to 1."""
    support: Tensor
    """Number of frozen and of active prompts that an image selects, `[B, L, 2]`."""
    shown: Tensor | None
    """Positions of the images stored one by one, `[K]`; None if there are none."""
    shown_classes: Tensor | None
    """Their labels `[K]`."""
    weights: Tensor | None
    """Their weights within the set that a prompt is routed in, `[K, L, N]`."""


@dataclass(frozen=True)
class StageEvidence:
    """FOLDER/evidence/stage-N"""

    info: EvidenceInfo
    tensors: Mapping[str, Tensor]

    @property
    def number(self) -> int:
        return self.info.stage

    @property
    def pool(self) -> PoolInfo | None:
        """The pool after the stage; frozen prompts come first, then the active ones."""
        return self.info.pool

    @cached_property
    def predictions(self) -> list[Tensor]:
        """Predicted classes of the test images of each domain, `[N]` each."""
        return self._numbered("answers")

    @cached_property
    def confidence(self) -> list[Tensor]:
        """Probability of each predicted class, `[N]` per domain."""
        return self._numbered("confidence")

    @cached_property
    def correct(self) -> list[Tensor]:
        """Which predictions are correct, `[N]` per domain."""
        labels = self._numbered("labels")
        return [found == truth for found, truth in zip(self.predictions, labels, strict=True)]

    @cached_property
    def routing(self) -> list[DomainRouting]:
        """Routing of each domain learned so far; empty for a method without prompts."""
        return [
            DomainRouting(
                index,
                frequency,
                self.tensors[f"usage.{index}"],
                self.tensors[f"support.{index}"],
                self.tensors.get(f"shown.{index}"),
                self.tensors.get(f"shown_classes.{index}"),
                self.tensors.get(f"weights.{index}"),
            )
            for index, frequency in enumerate(self._numbered("frequency"))
        ]

    @property
    def similarity(self) -> Tensor | None:
        """Cosine similarity of prompts `[N, N]`."""
        return self.tensors.get("similarity", self.tensors.get("likeness"))  # the former name

    def _numbered(self, name: str) -> list[Tensor]:
        found: list[Tensor] = []
        while f"{name}.{len(found)}" in self.tensors:
            found.append(self.tensors[f"{name}.{len(found)}"])
        return found


def read_evidence(folder: Path, stages: int) -> list[StageEvidence]:
    """Evidence of the first `stages` stages, up to the first that has none."""
    found: list[StageEvidence] = []
    home = folder / "evidence"
    while len(found) < stages and has_state(home, f"stage-{len(found) + 1}"):
        name = f"stage-{len(found) + 1}"
        tensors, metadata = load_state(home, name)
        info = checked(EvidenceInfo, metadata, home / f"{name}.json", "evidence file")
        found.append(StageEvidence(info, tensors))
    return found
