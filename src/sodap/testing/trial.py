"""A method on trial: taught two tiny stages once, watched all the way, and asked many things."""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sodap.learning import Learner, StageProgress, Training
from sodap.learning.progress import snapshot
from sodap.methods import Method, find_method
from sodap.streams import Domain, MissingClassWarning, Stream, union
from sodap.testing.streams import tiny_stream

SIDE = 16  # pixels


class BrokenPromise(AssertionError):  # noqa: N818 (it is not an error of the test)
    """A method does not do what its contract says."""


@dataclass(frozen=True)
class Steps:
    """What the training steps of one stage did, from the first to the last of them."""

    stage: int
    before: Mapping[str, Tensor]
    """The state when the stage had begun and nothing was trained yet."""
    after: Mapping[str, Tensor]
    """The state after the last step, before the best epoch is restored."""
    trained: frozenset[str]
    """Names in the state that the optimiser was given."""
    claimed: int
    """What `trainable_count` said."""

    @property
    def moved(self) -> int:
        """Numbers that are not what they were."""
        return sum(int((self.before[name] != self.after[name]).sum()) for name in self.trained)

    @property
    def offered(self) -> int:
        """Numbers that the optimiser was given."""
        return sum(self.before[name].numel() for name in self.trained)


@dataclass(frozen=True)
class Midway:
    """A stage that was left after its first epoch, as a checkpoint holds it."""

    state: dict[str, Tensor]
    progress: StageProgress


@dataclass
class Taught:
    """A learner that has learned both domains, and what was kept on the way there."""

    learner: Learner
    folder: str
    """Where the learner was saved between the two stages."""
    first_state: dict[str, Tensor]
    """Its state then."""
    first_logits: Tensor
    """What it said then of the test images of the first domain."""
    steps: list[Steps] = field(default_factory=list)
    """Of each stage; empty for a method that takes none."""
    midway: Midway | None = None
    """Of the second stage."""


@dataclass(frozen=True)
class Trial:
    """One method with its options on one device; what is costly is done once."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def tolerance(self) -> float:
        """How far two probabilities may differ that should be the same."""
        return 1e-5 if self.device == "cpu" else 1e-3

    def same(self, one: Tensor, two: Tensor) -> bool:
        """To the bit on a processor; a GPU adds up in any order."""
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        if self.device == "cpu" or not one.is_floating_point():
            return torch.equal(one, two)
        return torch.allclose(one, two, rtol=1e-3, atol=1e-3)

    # ------------------------------------------------------------------ learners

    @cached_property
    def stream(self) -> Stream:
        return self.stripes()

    def stripes(self, classes: int = 3, count: int = 24) -> Stream:
        """Two domains of images so small that a network has little to do."""
        return tiny_stream(2, classes, count, size=SIDE)

    def learner(self, classes: int = 3, *, epochs: int = 2, precision: str = "fp32") -> Learner:
        """A fresh one. Batches of 16 leave a smaller one at the end; the decay is strong enough
        to move whatever it should not touch."""
        return Learner(
            [f"class {index}" for index in range(classes)],
            method=self.method,
            options=self.options,
            image_size=SIDE,
            training=Training(epochs=epochs, patience=epochs, batch_size=16, weight_decay=0.5),
            device=self.device,
            precision=precision,
        )

    def teach(self, learner: Learner, domains: Sequence[Domain], **hooks: Any) -> None:
        """The next domain of `domains`, or all up to it for an upper bound."""
        so_far = domains[: learner.stages_learned + 1]
        domain = union(so_far) if learner.method.learns_all_domains else so_far[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingClassWarning)
            learner.learn(domain, **hooks)

    def logits(self, learner: Learner, images: Tensor) -> Tensor:
        """Of uint8 images `[B, 3, H, W]`, on the CPU: `[B, C]`."""
        return learner.forward(images).float().cpu()

    @cached_property
    def taught(self) -> Taught:
        """Both stages of `stream`. Look, but do not train it further."""
        learner, domains = self.learner(), self.stream.domains
        steps = [self._watched(learner, domains)]
        folder = tempfile.mkdtemp(prefix="sodap-testing-")
        learner.save(folder)
        taught = Taught(
            learner,
            folder,
            snapshot(learner.method.state()),
            self.logits(learner, domains[0].test.images),
        )
        weakref.finalize(taught, shutil.rmtree, folder, ignore_errors=True)

        def keep(progress: StageProgress) -> None:
            if progress.epoch == 1:
                tensors = snapshot(progress.tensors())
                copy = StageProgress.restore(progress.metadata(), tensors)
                copy.history = list(copy.history)
                taught.midway = Midway(snapshot(learner.method.state()), copy)

        steps.append(self._watched(learner, domains, on_epoch=keep))
        taught.steps += [each for each in steps if each is not None]
        return taught

    def _watched(self, learner: Learner, domains: Sequence[Domain], **hooks: Any) -> Steps | None:
        """Teach the next domain; None where that took no training steps."""
        method = learner.method
        begun: dict[str, Any] = {}
        after: dict[str, Tensor] = {}
        groups_of = method.parameter_groups

        def begin(lr: float, weight_decay: float) -> list[dict[str, Any]]:
            groups = groups_of(lr, weight_decay)
            begun["before"] = snapshot(method.state())
            begun["trained"] = _names(method, groups)
            begun["claimed"] = method.trainable_count()
            return groups

        def look(epoch: int, done: int, total: int) -> None:
            if done == total:
                after.clear()
                after.update(snapshot(method.state()))

        # The loop asks what trains exactly once, between the beginning of a stage and its steps.
        method.parameter_groups = begin  # type: ignore[method-assign]
        try:
            self.teach(learner, domains, on_batch=look, **hooks)
        finally:
            del method.parameter_groups
        return Steps(learner.stages_learned, after=after, **begun) if begun else None

    @property
    def gradient(self) -> bool:
        return find_method(self.method).learns_by_gradient


def _names(method: Method, groups: list[dict[str, Any]]) -> frozenset[str]:
    given = {id(parameter) for group in groups for parameter in group["params"]}
    named = method.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in named if id(parameter) in given)
