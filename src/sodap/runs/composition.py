"""Cross-composition of a finished run: the representation of one stage under the head of another.

For every stage i, one pass over all test images gives what the head is given there. All heads C_j
are then asked about it, so that T x T models cost T passes. The probes see some training images of
each domain, which the method itself may long have given away: they measure, they do not compete.
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
from sodap.storage import has_state, load_state, read_json, write_json
from sodap.streams import Domain, Split, Stream

FILE = "evidence/composition.json"

PROBE_IMAGES = {"train": 2000, "val": 1000}
"""At most so many images of a domain fit a probe and choose its penalty."""


def read_composition(folder: Path) -> dict[str, Any] | None:
    """What an earlier call has measured."""
    path = folder / FILE
    return read_json(path) if path.is_file() else None


def compose(
    folder: Path,
    stream: Stream,
    record: Mapping[str, Any],
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure all pairs of a finished run, and keep the result in its folder.

    `accuracy` and `macro_f1` are A `[T, T, D]`; `probe` holds the accuracy of fresh linear heads
    `[T, D]`, fitted to the domain alone (`own`) and to all domains (`joint`).
    """
    kept = read_composition(folder)
    if kept is not None:
        return kept
    began = time.perf_counter()
    config = record["config"]
    learner = load(folder, device=config["device"], precision=config["precision"])
    head = getattr(learner.method, "head", None)
    if not isinstance(head, nn.Module):
        raise SodapError(f"{learner.method_name} has no head that could be exchanged")
    states = _states(folder, len(record["stages"]))
    heads = [_with_state(head, state) for state in states]  # C_1 ... C_T
    A: list[list[list[float]]] = []
    F1: list[list[list[float]]] = []
    probes: dict[str, list[list[float]]] = {"own": [], "joint": []}
    elsewhere = bool(record["environment"].get("gpu")) != torch.cuda.is_available()
    deviation = 0.0
    for stage, state in enumerate(states, start=1):
        learner.restore(state, stage, stage)
        tests = [_given_to_head(learner, domain.test) for domain in stream.tested]
        labels = [domain.test.labels for domain in stream.tested]
        tables = [
            [_judge(head, given, truth) for given, truth in zip(tests, labels, strict=True)]
            for head in heads
        ]
        found = _deviation(tables[stage - 1], record["confusions"][stage - 1], elsewhere)
        deviation = max(deviation, found)
        A.append([[accuracy(table) for table in row] for row in tables])
        F1.append([[macro_f1(table) for table in row] for row in tables])
        for kind, scores in _probes(learner, stream, tests).items():
            probes[kind].append(scores)
        if on_progress is not None:
            on_progress(stage, len(states))
    result = {
        "domains": [domain.name for domain in stream.tested],
        "accuracy": A,
        "macro_f1": F1,
        "probe": probes,
        "probe_images": PROBE_IMAGES,
        "deviation": deviation,
        "seconds": time.perf_counter() - began,
    }
    write_json(folder / FILE, result)
    return result


def _states(folder: Path, stages: int) -> list[dict[str, Tensor]]:
    if not has_state(folder / "model", "model"):
        raise SodapError("parts of stages can be exchanged once a run is finished, not before")
    states = []
    for number in range(1, stages):
        home = folder / "stages" / str(number)
        if not has_state(home, "model"):
            raise SodapError(
                f"the model of stage {number} was not kept: the run had keep_stages=false, or its "
                f"models are larger than 64 MB"
            )
        states.append(load_state(home, "model")[0])
    return [*states, load_state(folder / "model", "model")[0]]


def _with_state(head: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the head as it was when this state was kept."""
    own = {k.removeprefix("head."): v for k, v in state.items() if k.startswith("head.")}
    part = copy.deepcopy(head)
    part.load_state_dict(own)
    return part.eval()


@contextmanager
def _at_the_head(learner: Learner) -> Iterator[list[Tensor]]:
    """What the head is given, batch by batch, while the model answers."""
    given: list[Tensor] = []
    head = learner.method.head
    assert isinstance(head, nn.Module)
    hook = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].float()))
    try:
        yield given
    finally:
        hook.remove()


def _given_to_head(learner: Learner, split: Split) -> Tensor:
    """Features `[N, D]` of a split, as the head sees them."""
    with _at_the_head(learner) as given:
        learner.evaluate(split)
    features = torch.cat(given)
    if len(features) != len(split):
        raise SodapError(
            f"{learner.method_name} asks its head more than once for an image: "
            f"there is no one head to exchange"
        )
    return features


@torch.inference_mode()
def _judge(head: nn.Module, features: Tensor, labels: Tensor) -> np.ndarray[Any, Any]:
    logits = head(features)
    return confusion_matrix(labels, logits.argmax(-1).cpu(), logits.shape[-1])


def _deviation(
    found: Sequence[np.ndarray[Any, Any]], recorded: Sequence[Any], elsewhere: bool
) -> float:
    """By how much B_i with C_i misses what the run itself has measured of that very model.

    On the same kind of device a few answers in thousands may fall differently, and more on another
    one, where the run's precision is another, too. Beyond that something between features and
    answers was missed, and then no cell of the table could be trusted.
    """
    share, images = (0.03, 3.5) if elsewhere else (0.005, 1.5)
    largest = 0.0
    for table, known in zip(found, recorded, strict=True):
        missed = abs(accuracy(table) - accuracy(np.array(known)))
        if missed > max(share, images / table.sum()):
            raise SodapError(
                "the model with its own head does not answer as it did in the run, "
                "so its parts cannot be exchanged"
            )
        largest = max(largest, missed)
    return largest


def _probes(learner: Learner, stream: Stream, tests: Sequence[Tensor]) -> dict[str, list[float]]:
    """Ridge regression on what the head is given, for each domain and for all together."""
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
    features = _given_to_head(learner, part).cpu()
    sums = SecondMoments(len(learner.classes), features.shape[1])
    sums.update(features, part.labels)
    return sums


def _probe_accuracy(head: Tensor, features: Tensor, labels: Tensor) -> float:
    answers = (with_constant(features.cpu().double()) @ head).argmax(-1)
    return accuracy(confusion_matrix(labels, answers, head.shape[1]))
