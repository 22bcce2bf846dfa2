"""Checks of training."""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase

import torch

from sodap.methods import Batch
from sodap.testing.promises.checks import promise, quoted, require, require_equal_states
from sodap.testing.trial import Trial


@promise
def losses_are_finite(trial: Trial) -> None:
    """Losses are finite scalars with a gradient; a closed form is not asked for any."""
    interrupted = trial.trained.interrupted
    if interrupted is None:
        return
    learner = trial.learner()  # of its own, because losses may change the state
    learner.restore(copy.deepcopy(interrupted.state), interrupted.stage, interrupted.stage - 1)
    method = learner.method.train()
    split, device = trial.stream.domains[interrupted.stage - 1].train, learner.runtime.device
    images = method.backbone.prepare(split.images.to(device))
    generator = torch.Generator(device).manual_seed(0)
    losses = method.losses(
        Batch(images, split.labels.to(device), generator, method.backbone.prepare)
    )
    require(bool(losses), "there is no loss")
    for name, loss in losses.items():
        require(loss.ndim == 0, f"the loss '{name}' is not a scalar but {list(loss.shape)}")
        require(bool(loss.isfinite()), f"the loss '{name}' is {float(loss.detach())}")
    total = method.total(losses)
    require(total.ndim == 0 and bool(total.isfinite()), f"the total is {total.detach()}")
    require(total.requires_grad, "the total has no gradient")


@promise
def frozen_stays_frozen(trial: Trial) -> None:
    """Training changes only trained parameters and state that is named in `running`."""
    learner = trial.trained.learner
    digest, fresh = learner.method.backbone.digest(), trial.learner().method.backbone.digest()
    require(digest == fresh, "the frozen backbone was changed")
    for steps in trial.trained.steps:
        require(
            steps.before.keys() == steps.after.keys(),
            f"the steps of stage {steps.stage} added or dropped "
            f"{quoted(steps.before.keys() ^ steps.after.keys())}; allocate it in begin_stage",
        )
        changed = [
            name
            for name, value in steps.before.items()
            if name not in steps.trained
            and not any(fnmatchcase(name, pattern) for pattern in learner.method.running)
            and not torch.equal(value, steps.after[name])
        ]
        require(
            not changed,
            f"the steps of stage {steps.stage} changed {quoted(changed)}, which is in no parameter "
            f"group; train it, do not change it, or name it in `running`",
        )


@promise
def trainable_count_is_right(trial: Trial) -> None:
    """`trainable_count` is at least what changes in a stage and at most what is optimised."""
    require(trial.trained.learner.method.trainable_count() > 0, "trainable_count is 0")
    require(bool(trial.trained.steps) == trial.learns_by_gradient, "`learns_by_gradient` is wrong")
    for steps in trial.trained.steps:
        require(
            steps.changed <= steps.declared <= steps.optimised,
            f"in stage {steps.stage} it is {steps.declared}, but {steps.changed} scalars changed, "
            f"and {steps.optimised} are in parameter groups",
        )
        require(steps.changed > 0, f"in stage {steps.stage} nothing changed")


@promise
def the_seed_determines_everything(trial: Trial) -> None:
    """Two learners with the same seed are equal, whatever the state of torch's global generator."""
    first = trial.trained.first_state
    with torch.random.fork_rng():
        torch.manual_seed(20_011)
        learner = trial.learner()
        trial.learn_next(learner, trial.stream.domains)
    require_equal_states(trial, learner.method.state(), first, "a second run of stage 1")
