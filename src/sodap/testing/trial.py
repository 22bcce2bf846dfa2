"""A method trained on two tiny domains, for the conformance checks."""

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
from sodap.testing.streams import tiny_stream as make_stream

SIDE = 16
"""Side of the images in pixels."""


class BrokenPromise(AssertionError):  # noqa: N818 (a failed check is not an error)
    """A method does not keep its contract."""


@dataclass(frozen=True)
class StageSteps:
    """State of a method before and after the training steps of one stage."""

    stage: int
    before: Mapping[str, Tensor]
    """State after `begin_stage`, before the first step."""
    after: Mapping[str, Tensor]
    """State after the last step, before the best epoch is restored."""
    trained: frozenset[str]
    """Names of the parameters in the optimiser."""
    declared: int
    """What `trainable_count` returned."""

    @property
    def changed(self) -> int:
        """Number of trained scalars that changed."""
        return sum(int((self.before[name] != self.after[name]).sum()) for name in self.trained)

    @property
    def optimised(self) -> int:
        """Number of scalars in the optimiser."""
        return sum(self.before[name].numel() for name in self.trained)


@dataclass(frozen=True)
class InterruptedStage:
    """State and progress of a stage after its first epoch, as in a checkpoint."""

    stage: int
    state: dict[str, Tensor]
    progress: StageProgress


@dataclass
class TrainedLearner:
    """A learner that has learned two domains, with snapshots from its training."""

    learner: Learner
    folder: str
    """Folder of the model that was saved after stage 1."""
    first_state: dict[str, Tensor]
    """State after stage 1."""
    first_logits: Tensor
    """Logits of the first domain's test images after stage 1."""
    steps: list[StageSteps] = field(default_factory=list)
    """Training steps of each stage; empty for a closed form."""
    interrupted: InterruptedStage | None = None
    """The last stage with epochs, after its first one; None for a closed form."""


@dataclass(frozen=True)
class Trial:
    """One method with its options on one device. It is trained only once, for all checks."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def tolerance(self) -> float:
        """Largest difference of two probabilities that count as equal."""
        return 1e-5 if self.device == "cpu" else 1e-3

    def equal(self, one: Tensor, two: Tensor) -> bool:
        """Whether tensors are equal: to the bit on a CPU, to rounding on a GPU."""
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        if self.device == "cpu" or not one.is_floating_point():
            return torch.equal(one, two)
        return torch.allclose(one, two, rtol=1e-3, atol=1e-3)

    # ------------------------------------------------------------------ learners

    @cached_property
    def stream(self) -> Stream:
        """The stream that `trained` learns."""
        return self.tiny_stream()

    def tiny_stream(self, classes: int = 3, count: int = 24) -> Stream:
        """Two domains of very small images."""
        return make_stream(2, classes, count, size=SIDE)

    def learner(self, classes: int = 3, *, epochs: int = 2, precision: str = "fp32") -> Learner:
        """Make an untrained learner.

        Batches of 16 leave a smaller one at the end of an epoch. Weight decay is strong, so that it
        visibly changes parameters that should be exempt from it.
        """
        return Learner(
            [f"class {index}" for index in range(classes)],
            method=self.method,
            options=self.options,
            image_size=SIDE,
            training=Training(epochs=epochs, patience=epochs, batch_size=16, weight_decay=0.5),
            device=self.device,
            precision=precision,
        )

    def learn_next(self, learner: Learner, domains: Sequence[Domain], **hooks: Any) -> None:
        """Learn the next of `domains`, or for an upper bound all up to it."""
        so_far = domains[: learner.stages_learned + 1]
        domain = union(so_far) if learner.method.learns_all_domains else so_far[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingClassWarning)
            learner.learn(domain, progress=False, **hooks)

    def logits(self, learner: Learner, images: Tensor) -> Tensor:
        """Logits `[B, C]` of uint8 images `[B, 3, H, W]`, on the CPU."""
        return learner.forward(images).float().cpu()

    @cached_property
    def trained(self) -> TrainedLearner:
        """A learner of both domains of `stream`, which checks must not train further."""
        learner, domains = self.learner(), self.stream.domains
        interrupted: list[InterruptedStage] = []

        def keep(progress: StageProgress) -> None:
            if progress.epoch == 1:
                tensors = snapshot(progress.tensors())
                copy = StageProgress.restore(progress.metadata(), tensors)
                copy.history = list(copy.history)
                state = snapshot(learner.method.state())
                interrupted.append(InterruptedStage(progress.stage, state, copy))

        steps = [self._learn_and_observe(learner, domains, on_epoch=keep)]
        folder = tempfile.mkdtemp(prefix="sodap-testing-")
        learner.save(folder)
        trained = TrainedLearner(
            learner,
            folder,
            snapshot(learner.method.state()),
            self.logits(learner, domains[0].test.images),
        )
        weakref.finalize(trained, shutil.rmtree, folder, ignore_errors=True)
        steps.append(self._learn_and_observe(learner, domains, on_epoch=keep))
        trained.steps += [each for each in steps if each is not None]
        trained.interrupted = interrupted[-1] if interrupted else None
        return trained

    def _learn_and_observe(
        self, learner: Learner, domains: Sequence[Domain], **hooks: Any
    ) -> StageSteps | None:
        """Learn the next domain; None if that took no training steps."""
        method = learner.method
        begun: dict[str, Any] = {}
        after: dict[str, Tensor] = {}
        groups_of = method.parameter_groups

        def begin(lr: float, weight_decay: float) -> list[dict[str, Any]]:
            groups = groups_of(lr, weight_decay)
            begun["before"] = snapshot(method.state())
            begun["trained"] = _names(method, groups)
            begun["declared"] = method.trainable_count()
            return groups

        def observe(epoch: int, done: int, total: int) -> None:
            if done == total:
                after.clear()
                after.update(snapshot(method.state()))

        # The loop calls parameter_groups exactly once, between begin_stage and the first step.
        method.parameter_groups = begin  # type: ignore[method-assign]
        try:
            self.learn_next(learner, domains, on_batch=observe, **hooks)
        finally:
            del method.parameter_groups
        return StageSteps(learner.stages_learned, after=after, **begun) if begun else None

    @property
    def learns_by_gradient(self) -> bool:
        """Whether the method has training steps."""
        return find_method(self.method).learns_by_gradient


def _names(method: Method, groups: list[dict[str, Any]]) -> frozenset[str]:
    given = {id(parameter) for group in groups for parameter in group["params"]}
    named = method.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in named if id(parameter) in given)
