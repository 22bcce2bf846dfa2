"""Checks of saving, loading and resuming."""

from __future__ import annotations

import copy

from torch import Tensor

from sodap.errors import SodapError
from sodap.learning import load
from sodap.learning.progress import snapshot
from sodap.testing.promises.checks import promise, require, require_equal_states
from sodap.testing.trial import BrokenPromise, Trial


@promise
def a_saved_learner_continues(trial: Trial) -> None:
    """A loaded learner predicts, stores and learns the same as the saved one."""
    trained, domains = trial.trained, trial.stream.domains
    loaded = load(trained.folder, device=trial.device, precision="fp32")
    require_equal_states(trial, loaded.method.state(), trained.first_state, "the loaded learner")
    found = trial.logits(loaded, domains[0].test.images)
    require(trial.equal(found, trained.first_logits), "the loaded learner predicts something else")
    trial.learn_next(loaded, domains)
    require_equal_states(
        trial, loaded.method.state(), trained.learner.method.state(), "stage 2 after a load"
    )
    require(
        loaded.stored() == trained.learner.stored(),
        "after stage 2 the loaded learner stores something else",
    )
    if trained.first_state:
        try:
            loaded.restore({}, 2, 2)
        except SodapError:
            return
        raise BrokenPromise("it accepts an empty state; `restore` must refuse a wrong state")


@promise
def a_stage_resumes_after_an_epoch(trial: Trial) -> None:
    """A stage that is resumed after an epoch ends with the same state."""
    trained = trial.trained
    if trained.interrupted is None:
        require(not trial.learns_by_gradient, "it learns by gradient, but had no epochs")
        return
    learner, stage = trial.learner(), trained.interrupted.stage
    learner.restore(copy.deepcopy(trained.interrupted.state), stage, stage - 1)
    last: dict[str, Tensor] = {}

    def observe(epoch: int, done: int, total: int) -> None:
        last.update(snapshot(learner.method.state()))

    progress = copy.deepcopy(trained.interrupted.progress)
    trial.learn_next(learner, trial.stream.domains, resumed=progress, on_batch=observe)
    # The last step is compared too, because the best epoch may be the one before the resume.
    require_equal_states(trial, last, trained.steps[-1].after, "the last step after a resume")
    expected = trained.first_state if stage == 1 else trained.learner.method.state()
    require_equal_states(trial, learner.method.state(), expected, f"stage {stage} after a resume")
