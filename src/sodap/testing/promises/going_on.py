"""Saved and loaded, or interrupted and resumed, learning goes on as if nothing had happened."""

from __future__ import annotations

import copy

from torch import Tensor

from sodap.errors import SodapError
from sodap.learning import load
from sodap.learning.progress import snapshot
from sodap.testing.promises.judging import demand, promise, same_state
from sodap.testing.trial import BrokenPromise, Trial


@promise
def a_saved_learner_goes_on(trial: Trial) -> None:
    """Loaded from disk it predicts the same, keeps the same, and learns the next stage the same."""
    taught, domains = trial.taught, trial.stream.domains
    loaded = load(taught.folder, device=trial.device, precision="fp32")
    same_state(trial, loaded.method.state(), taught.first_state, "the loaded learner")
    found = trial.logits(loaded, domains[0].test.images)
    demand(trial.same(found, taught.first_logits), "loaded, it predicts something else")
    trial.teach(loaded, domains)
    same_state(trial, loaded.method.state(), taught.learner.method.state(), "stage 2 after a load")
    demand(
        loaded.stored() == taught.learner.stored(),
        "after a load and stage 2 `stored` lists other assets",
    )
    if taught.first_state:
        try:
            loaded.restore({}, 2, 2)
        except SodapError:
            return
        raise BrokenPromise("it accepts an empty state; `restore` must refuse what does not fit")


@promise
def a_stage_goes_on_after_an_epoch(trial: Trial) -> None:
    """Interrupted after an epoch and resumed, a stage ends as if nothing had happened."""
    taught = trial.taught
    if taught.midway is None:
        demand(not trial.gradient, "it learns by gradient but has no epochs")
        return
    learner = trial.learner()
    learner.restore(copy.deepcopy(taught.midway.state), stage=2, stages_learned=1)
    last: dict[str, Tensor] = {}

    def look(epoch: int, done: int, total: int) -> None:
        last.update(snapshot(learner.method.state()))

    progress = copy.deepcopy(taught.midway.progress)
    trial.teach(learner, trial.stream.domains, resumed=progress, on_batch=look)
    # The best epoch may be the one before the interruption: that alone would prove nothing.
    same_state(trial, last, taught.steps[-1].after, "the last step after a resume")
    same_state(
        trial, learner.method.state(), taught.learner.method.state(), "stage 2 after a resume"
    )
