"""What training does, what it leaves alone, and that a seed decides it."""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase

import torch

from sodap.methods import Batch
from sodap.testing.promises.judging import demand, listed, promise, same_state
from sodap.testing.trial import Trial


@promise
def losses_are_finite(trial: Trial) -> None:
    """Training gives named scalar losses that are finite, and a total to descend."""
    learner = trial.taught.learner
    method = copy.deepcopy(learner.method).train()  # what a step leaves behind is not looked at
    split, device = trial.stream.domains[1].train, learner.runtime.device
    images = method.backbone.prepare(split.images.to(device))
    generator = torch.Generator(device).manual_seed(0)
    losses = method.losses(
        Batch(images, split.labels.to(device), generator, method.backbone.prepare)
    )
    demand(bool(losses), "there is no loss")
    for name, loss in losses.items():
        demand(loss.ndim == 0, f"the loss '{name}' is no scalar but {list(loss.shape)}")
        demand(bool(loss.isfinite()), f"the loss '{name}' is {float(loss.detach())}")
    total = method.total(losses)
    demand(total.ndim == 0 and bool(total.isfinite()), f"the total is {total.detach()}")
    if trial.gradient:
        demand(total.requires_grad, "the total has no gradient, so no step can descend it")


@promise
def frozen_stays_frozen(trial: Trial) -> None:
    """The backbone, and all of the state that is not trained in a stage, stays to the bit."""
    learner = trial.taught.learner
    digest, fresh = learner.method.backbone.digest(), trial.learner().method.backbone.digest()
    demand(digest == fresh, "the frozen backbone was changed")
    for steps in trial.taught.steps:
        demand(
            steps.before.keys() == steps.after.keys(),
            f"the steps of stage {steps.stage} added or dropped "
            f"{listed(steps.before.keys() ^ steps.after.keys())}; make room in begin_stage",
        )
        moved = [
            name
            for name, value in steps.before.items()
            if name not in steps.trained
            and not any(fnmatchcase(name, pattern) for pattern in learner.method.running)
            and not torch.equal(value, steps.after[name])
        ]
        demand(
            not moved,
            f"the steps of stage {steps.stage} moved {listed(moved)}, which no optimiser was "
            f"given; train it, leave it alone, or name it in `running`",
        )


@promise
def trainable_count_is_true(trial: Trial) -> None:
    """It counts what a stage trains: no fewer numbers than move, no more than can."""
    demand(trial.taught.learner.method.trainable_count() > 0, "it says that nothing is learned")
    demand(bool(trial.taught.steps) == trial.gradient, "`learns_by_gradient` is not true")
    for steps in trial.taught.steps:
        demand(
            steps.moved <= steps.claimed <= steps.offered,
            f"in stage {steps.stage} it says {steps.claimed}, but {steps.moved} numbers moved, "
            f"and the optimiser was given {steps.offered}",
        )
        demand(steps.moved > 0, f"in stage {steps.stage} nothing moved")


@promise
def a_seed_decides_everything(trial: Trial) -> None:
    """Two learners with one seed are equal, whatever else is drawn from torch's own generator."""
    first = trial.taught.first_state
    with torch.random.fork_rng():
        torch.manual_seed(20_011)
        learner = trial.learner()
        trial.teach(learner, trial.stream.domains)
    same_state(trial, learner.method.state(), first, "a second run of stage 1")
