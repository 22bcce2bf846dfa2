"""What a run leaves for its report, measured while the model of a stage is at hand.

FOLDER/evidence/stage-N.json      which images were looked at, and how large the pool was
FOLDER/evidence/stage-N-*         tensors: answers to the test images, routing, likeness of prompts
FOLDER/stages/N/                  the model after stage N, small; the last one is FOLDER/model
FOLDER/steps/stage-N.json, -*     losses and learned weights of every step, beside the epochs' log

Answers and confidences are those of the evaluation that a run does anyway. Routing needs a pass
over some test images of each domain learned so far. No image is written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.execution import ClassPredictions
from sodap.learning import Learner, StageProgress
from sodap.learning.trace import Trace
from sodap.methods import Method
from sodap.randomness import Randomness
from sodap.storage import has_state, load_state, save_state
from sodap.streams import Domain, Split, Stage

LOOKED_AT = 100
"""Test images of a domain whose routing is counted, as in the paper's Fig. 5."""

SHOWN = 3
"""Images a class whose routing is drawn one by one."""

SHOWN_CLASSES = 10
"""A heat map with more classes could not be read."""

LARGEST_STATE = 64_000_000
"""Bytes. Larger states (a whole ViT-B that was trained) would fill a disk, stage by stage."""


# ------------------------------------------------------------------ while a run goes on


@dataclass(frozen=True)
class PendingWrite:
    """What is to be written under `name` in `folder`; all of it is in the host's memory."""

    folder: Path
    name: str
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def write(self) -> None:
        save_state(self.folder, self.name, self.tensors, self.facts)


def evidence_of(
    folder: Path,
    learner: Learner,
    stage: Stage,
    tested: Sequence[Domain],
    predictions: Sequence[ClassPredictions],
    pool: Mapping[str, int] | None,
) -> PendingWrite:
    """FOLDER/evidence/stage-N, with the answers to the test images of each domain.

    `pool` is its partition as the method counts it.
    """
    began = time.perf_counter()
    tensors: dict[str, Tensor] = {}
    for index, (domain, said) in enumerate(zip(tested, predictions, strict=True)):
        tensors[f"answers.{index}"] = said.classes.to(torch.int16)
        tensors[f"confidence.{index}"] = said.confidence
        tensors[f"labels.{index}"] = domain.test.labels.to("cpu", torch.int16)
    for index, domain in enumerate(tested[: stage.number]):
        drawn = index in (0, stage.number - 1)  # an old domain and the new one
        tensors |= {
            f"{name}.{index}": value
            for name, value in _routing_of(learner, domain.test, drawn).items()
        }
    likeness = prompt_likeness(learner.method)
    if likeness is not None:
        tensors["likeness"] = likeness.half()
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    facts = {
        "stage": stage.number,
        "domain": stage.domain.name,
        "pool": None if pool is None else dict(pool),
        "looked_at": LOOKED_AT,
        "seconds": time.perf_counter() - began,
    }
    return PendingWrite(folder / "evidence", f"stage-{stage.number}", tensors, facts)


def images_to_look_at(split: Split, classes: int) -> tuple[Tensor, Tensor]:
    """Positions of images for counting `[≤ LOOKED_AT]`, and for drawing, class by class.

    They depend on the size of the split and its labels alone: every method and every seed is shown
    the same ones.
    """
    order = torch.randperm(len(split), generator=Randomness(0).generator("evidence"))
    labels = split.labels.cpu()[order]
    drawn = [order[labels == label][:SHOWN] for label in range(min(classes, SHOWN_CLASSES))]
    return order[:LOOKED_AT], torch.cat(drawn)


@torch.inference_mode()
def _routing_of(learner: Learner, split: Split, drawn: bool) -> dict[str, Tensor]:
    """How often each prompt is selected by images of a split, and how each single image does it."""
    counted, shown = images_to_look_at(split, len(learner.classes))
    extra = shown[~torch.isin(shown, counted)] if drawn else shown[:0]
    looked = torch.cat([counted, extra])  # one pass for both
    found = learner.forward.routing(split.images[looked])
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
        place = {position: row for row, position in enumerate(looked.tolist())}
        tensors["shown"] = shown
        tensors["shown_classes"] = split.labels[shown]
        tensors["weights"] = weights[[place[position] for position in shown.tolist()]].half()
    return tensors


@torch.no_grad()
def prompt_likeness(method: Method) -> Tensor | None:
    """Cosines between the values of all prompts in use, `[N, N]`; None where there is no pool.

    Of pools that each layer has for itself, the mean.
    """
    values = method.prompt_values()
    if values is None:
        return None
    rows = F.normalize(values.float(), dim=-1)  # [copies, N, d]
    return (rows @ rows.mT).mean(0)


def model_of(folder: Path, learner: Learner, number: int) -> list[PendingWrite]:
    """The model after a stage, for cross-composition; nothing where it is too large to keep."""
    state = learner.method.state()
    if sum(tensor.nbytes for tensor in state.values()) > LARGEST_STATE:
        return []
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
    return [PendingWrite(folder / "stages" / str(number), "model", copies, learner.metadata())]


def keep_steps(folder: Path, progress: StageProgress) -> None:
    """Write FOLDER/steps/stage-N; 4 bytes a number, so a few MB for a hundred thousand steps."""
    if len(progress.trace):
        facts = {"stage": progress.stage, "epochs": progress.epoch, "steps": len(progress.trace)}
        save_state(folder / "steps", f"stage-{progress.stage}", progress.trace.tensors(), facts)


# ------------------------------------------------------------------ afterwards


def read_steps(folder: Path, log: Sequence[Mapping[str, Any]]) -> dict[int, Trace]:
    """By its number, every stage in the log; empty unless each epoch there left its steps."""
    found: dict[int, Trace] = {}
    for stage in dict.fromkeys(int(row["stage"]) for row in log):
        if not has_state(folder / "steps", f"stage-{stage}"):
            return {}
        # An epoch that the log does not have was lost with a crash: it is to come again.
        epochs = [int(row["epoch"]) for row in log if row["stage"] == stage]
        tensors, _ = load_state(folder / "steps", f"stage-{stage}")
        trace = Trace.from_tensors(tensors).select(*epochs)
        if set(trace.epoch.tolist()) != set(epochs):
            return {}
        found[stage] = trace
    return found


@dataclass(frozen=True)
class DomainRouting:
    """How images of one domain were routed after a stage."""

    domain: int
    frequency: Tensor
    """`[L, N]`: the share of images that select a prompt at all."""
    usage: Tensor
    """`[L, N]`: the mean weight of a prompt; every layer sums to 1."""
    support: Tensor
    """`[B, L, 2]`: how many frozen and how many active prompts an image selects."""
    shown: Tensor | None
    """`[K]`: positions of the images that were looked at one by one; None if none were."""
    shown_classes: Tensor | None
    """`[K]`"""
    weights: Tensor | None
    """`[K, L, N]`: their weights, within the set that a prompt is routed in."""


@dataclass(frozen=True)
class StageEvidence:
    """What a run left of one stage."""

    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def number(self) -> int:
        return int(self.facts["stage"])

    @property
    def pool(self) -> Mapping[str, int] | None:
        """`frozen` prompts come first, then the `active` ones."""
        found: Mapping[str, int] | None = self.facts["pool"]
        return found

    @cached_property
    def answers(self) -> list[Tensor]:
        """Classes `[N]` that were answered to the test images of each domain."""
        return self._numbered("answers")

    @cached_property
    def confidence(self) -> list[Tensor]:
        """How sure each of them was `[N]`, from 0 to 1."""
        return self._numbered("confidence")

    @cached_property
    def right(self) -> list[Tensor]:
        """Which answers were right `[N]`."""
        labels = self._numbered("labels")
        return [answer == truth for answer, truth in zip(self.answers, labels, strict=True)]

    @cached_property
    def routing(self) -> list[DomainRouting]:
        """Of each domain learned so far; empty for a method without prompts."""
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
    def likeness(self) -> Tensor | None:
        """Cosines of prompts `[N, N]`."""
        return self.tensors.get("likeness")

    def _numbered(self, name: str) -> list[Tensor]:
        found: list[Tensor] = []
        while f"{name}.{len(found)}" in self.tensors:
            found.append(self.tensors[f"{name}.{len(found)}"])
        return found


def read_evidence(folder: Path, stages: int) -> list[StageEvidence]:
    """What the first `stages` stages left, up to the first that left nothing."""
    found: list[StageEvidence] = []
    home = folder / "evidence"
    while len(found) < stages and has_state(home, f"stage-{len(found) + 1}"):
        tensors, facts = load_state(home, f"stage-{len(found) + 1}")
        found.append(StageEvidence(facts, tensors))
    return found
