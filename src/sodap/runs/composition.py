"""Cross-composition of a finished run: the features of one stage under the head of another.

For every stage i, one pass over all test images gives the input of the head. All heads C_j then
classify it, so that T x T models cost T passes. The probes use some training images of each domain,
which the method itself does not have any more: they measure the features and do not compete.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sodap.errors import SodapError
from sodap.evaluation import accuracy, confusion_matrix, macro_f1
from sodap.learning import Learner, load
from sodap.methods.parts.second_moments import SecondMoments, solve_ridge, with_constant
from sodap.randomness import Randomness
from sodap.runs.reading import checked, read_record
from sodap.runs.record import Matrix, Schema
from sodap.storage import has_state, load_state, read_json, write_json
from sodap.streams import Domain, Split, Stream

FILE = "evidence/composition.json"

PROBE_IMAGES = {"train": 2000, "val": 1000}
"""Largest number of images per domain that fit a probe, and that choose its penalty."""


class Probes(Schema):
    """Accuracy of fresh linear heads, `[T, D]` each."""

    own: Matrix
    """Fitted to the domain alone."""
    joint: Matrix
    """Fitted to all domains."""


class Composition(Schema):
    """Content of `evidence/composition.json`."""

    domains: list[str]
    accuracy: list[Matrix]
    """A `[T, T, D]`: features of stage i, head of stage j, domain d."""
    macro_f1: list[Matrix]
    probe: Probes
    probe_images: dict[str, int]
    deviation: float = 0.0
    """Largest difference from an accuracy of the run itself."""
    seconds: float


def read_composition(folder: Path) -> Composition | None:
    """Result of an earlier call of `compose`; None if there is none."""
    path = folder / FILE
    return checked(Composition, read_json(path), path, "composition") if path.is_file() else None


def compose(
    folder: Path, stream: Stream, on_progress: Callable[[int, int], None] | None = None
) -> Composition:
    """Measure all pairs of a finished run, and store the result in its folder."""
    known = read_composition(folder)
    if known is not None:
        return known
    began = time.perf_counter()
    record = read_record(folder / "record.json")
    learner = load(folder, device=record.config.device, precision=record.config.precision)
    head = getattr(learner.method, "head", None)
    if not isinstance(head, nn.Module):
        raise SodapError(f"{learner.method_name} has no head that can be exchanged")
    states = _states(folder, len(record.stages))
    heads = [_with_state(head, state) for state in states]  # C_1 ... C_T
    A: list[list[list[float]]] = []
    F1: list[list[list[float]]] = []
    probes: dict[str, list[list[float]]] = {"own": [], "joint": []}
    had_gpu = record.environment is not None and record.environment.gpu is not None
    other_device = had_gpu != torch.cuda.is_available()
    deviation = 0.0
    for stage, state in enumerate(states, start=1):
        learner.restore(state, stage, stage)
        tests = [_features(learner, domain.test) for domain in stream.tested]
        labels = [domain.test.labels for domain in stream.tested]
        tables = [
            [_confusion(head, given, truth) for given, truth in zip(tests, labels, strict=True)]
            for head in heads
        ]
        found = _deviation(tables[stage - 1], record.confusions[stage - 1], other_device)
        deviation = max(deviation, found)
        A.append([[accuracy(table) for table in row] for row in tables])
        F1.append([[macro_f1(table) for table in row] for row in tables])
        for kind, scores in _probes(learner, stream, tests).items():
            probes[kind].append(scores)
        if on_progress is not None:
            on_progress(stage, len(states))
    result = Composition(
        domains=[domain.name for domain in stream.tested],
        accuracy=A,
        macro_f1=F1,
        probe=Probes(**probes),
        probe_images=PROBE_IMAGES,
        deviation=deviation,
        seconds=time.perf_counter() - began,
    )
    write_json(folder / FILE, result.model_dump(mode="json"))
    return result


def _states(folder: Path, stages: int) -> list[dict[str, Tensor]]:
    if not has_state(folder / "model", "model"):
        raise SodapError("heads of stages can be exchanged only after the run is finished")
    states = []
    for number in range(1, stages):
        home = folder / "stages" / str(number)
        if not has_state(home, "model"):
            raise SodapError(
                f"the model of stage {number} was not stored: the run had keep_stages=false, or "
                f"its models are larger than 64 MB"
            )
        states.append(load_state(home, "model")[0])
    return [*states, load_state(folder / "model", "model")[0]]


def _with_state(head: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the head with the parameters of a stored state."""
    own = {k.removeprefix("head."): v for k, v in state.items() if k.startswith("head.")}
    part = copy.deepcopy(head)
    part.load_state_dict(own)
    return part.eval()


@contextmanager
def _head_inputs(learner: Learner) -> Iterator[list[Tensor]]:
    """Collect the inputs of the head while the model predicts."""
    given: list[Tensor] = []
    head = learner.method.head
    assert isinstance(head, nn.Module)
    hook = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].float()))
    try:
        yield given
    finally:
        hook.remove()


def _features(learner: Learner, split: Split) -> Tensor:
    """Input of the head `[N, D]` for the images of a split."""
    with _head_inputs(learner) as given:
        learner.evaluate(split)
    if not given:
        raise SodapError(
            f"{learner.method_name} does not answer with its head, so heads cannot be exchanged"
        )
    features = torch.cat(given)
    if len(features) != len(split):
        raise SodapError(
            f"{learner.method_name} calls its head more than once per image, "
            f"so there is no single head to exchange"
        )
    return features


@torch.inference_mode()
def _confusion(head: nn.Module, features: Tensor, labels: Tensor) -> np.ndarray[Any, Any]:
    logits = head(features)
    return confusion_matrix(labels, logits.argmax(-1).cpu(), logits.shape[-1])


def _deviation(
    found: Sequence[np.ndarray[Any, Any]], recorded: Sequence[Any], other_device: bool
) -> float:
    """Largest difference between the accuracy of stage i with its own head and that of the run.

    A few predictions in thousands may differ on the same kind of device, and more on another kind,
    where the precision differs too. A larger difference means that the head's input is not all
    that the method predicts from, and that no cell of the table can be trusted.
    """
    share, images = (0.03, 3.5) if other_device else (0.005, 1.5)
    largest = 0.0
    for table, known in zip(found, recorded, strict=True):
        missed = abs(accuracy(table) - accuracy(np.array(known)))
        if missed > max(share, images / table.sum()):
            raise SodapError(
                "the model with its own head does not predict what it predicted in the run, "
                "so heads cannot be exchanged"
            )
        largest = max(largest, missed)
    return largest


def _probes(learner: Learner, stream: Stream, tests: Sequence[Tensor]) -> dict[str, list[float]]:
    """Accuracy of ridge regression on the head's input, for each domain and for all together."""
    width, classes = tests[0].shape[1], len(stream.classes)
    own: list[float] = []
    all_train, all_val = SecondMoments(classes, width), SecondMoments(classes, width)
    for domain, test in zip(stream.domains, tests, strict=False):
        train, val = _sums(learner, domain, "train"), _sums(learner, domain, "val")
        for total, part in ((all_train, train), (all_val, val)):
            total.merge(part)
        own.append(_probe_accuracy(solve_ridge(train, val)[0], test, domain.test.labels))
    joint = solve_ridge(all_train, all_val)[0]
    return {
        "own": own,
        "joint": [
            _probe_accuracy(joint, test, domain.test.labels)
            for domain, test in zip(stream.domains, tests, strict=False)
        ],
    }


def _sums(learner: Learner, domain: Domain, kind: str) -> SecondMoments:
    split: Split = getattr(domain, kind)
    order = torch.randperm(len(split), generator=Randomness(0).generator(f"probe {kind}"))
    chosen = order[: PROBE_IMAGES[kind]].sort().values
    part = Split(split.images[chosen], split.labels[chosen])
    features = _features(learner, part).cpu()
    sums = SecondMoments(len(learner.classes), features.shape[1])
    sums.update(features, part.labels)
    return sums


def _probe_accuracy(head: Tensor, features: Tensor, labels: Tensor) -> float:
    answers = (with_constant(features.cpu().double()) @ head).argmax(-1)
    return accuracy(confusion_matrix(labels, answers, head.shape[1]))
