from __future__ import annotations

import inspect

import pytest
import torch
from tests.conftest import TINY_VIT

from sodap.errors import SodapError
from sodap.execution import CannotCaptureError, StepResult, TrainStep
from sodap.learning import Learner, Training
from sodap.learning.progress import snapshot
from sodap.methods import Batch, Observations
from sodap.methods.sequential import Sequential
from sodap.streams import Augmentation, Stream

AUGMENTATION = Augmentation(rotate=20, brightness=0.2)


@pytest.fixture
def learner(stripes: Stream) -> Learner:
    learner = Learner(stripes.classes, device="cpu", **TINY_VIT)
    learner.method.begin_stage(1, Observations([]))
    return learner


def step_of(learner: Learner, batch_size: int = 16, lr: float = 1e-3) -> TrainStep:
    groups = learner.method.parameter_groups(lr, 0.01)
    return TrainStep(learner.method.train(), learner.runtime, groups, batch_size, AUGMENTATION)


def test_a_step_trains_what_the_groups_name(learner: Learner, stripes: Stream) -> None:
    split, method = stripes.domains[0].train, learner.method
    before, step = snapshot(method.state()), step_of(learner)
    trained = {id(p) for group in step.optimizer.param_groups for p in group["params"]}
    step.begin_epoch(1)
    result = step(split.images[:16], split.labels[:16])
    assert list(result.losses) == ["ce", "div"]
    assert result.weights == {}
    assert all(loss.isfinite() and not loss.requires_grad for loss in result.losses.values())
    assert all(parameter.grad is None for parameter in method.parameters())
    for name, parameter in method.named_parameters():
        if id(parameter) not in trained:
            assert name.startswith("backbone.") or torch.equal(parameter, before[name])
    assert not torch.equal(method.state()["head.weight"], before["head.weight"])


def test_an_epoch_decides_random_numbers_and_learning_rates(stripes: Stream) -> None:
    """Augmentation draws from the epoch's generator, whatever was drawn before."""

    def losses(*epochs: int) -> list[float]:
        learner = Learner(stripes.classes, method="sequential", device="cpu", **TINY_VIT)
        learner.method.stage = 1
        step, split = step_of(learner, lr=1e-30), stripes.domains[0].train
        found = []
        for epoch in epochs:
            step.begin_epoch(epoch, decay=0.25)
            assert [group["lr"] for group in step.optimizer.param_groups] == [2.5e-31] * 2
            found.append(float(step(split.images[:16], split.labels[:16]).losses["ce"]))
        return found

    first, second, again = losses(1, 2, 1)
    assert first == again != second
    assert losses(2) == [second]


def test_the_optimiser_continues_from_a_state(learner: Learner, stripes: Stream) -> None:
    split = stripes.domains[0].train
    step = step_of(learner)
    step.begin_epoch(1)
    step(split.images[:16], split.labels[:16])
    state = step.optimizer.state_dict()
    groups = learner.method.parameter_groups(1e-3, 0.01)
    resumed = TrainStep(learner.method, learner.runtime, groups, 16, optimizer_state=state)
    found = resumed.optimizer.state_dict()["state"]
    assert found.keys() == state["state"].keys()
    for index, moments in state["state"].items():
        assert torch.equal(found[index]["exp_avg"], moments["exp_avg"])


class Deep(Sequential):
    """Remembers the call stack above its losses."""

    stack: tuple[str, ...] = ()

    def losses(self, batch: Batch) -> dict[str, torch.Tensor]:
        self.stack = tuple(frame.function for frame in inspect.stack()[1:])
        return super().losses(batch)


def test_the_loop_reaches_the_method_in_a_few_frames(stripes: Stream) -> None:
    training = Training(epochs=1, batch_size=16)
    learner = Learner(
        stripes.classes, method="sequential", training=training, device="cpu", **TINY_VIT
    )
    learner.method.__class__ = Deep
    learner.learn(stripes.domains[0])
    assert isinstance(learner.method, Deep)
    assert learner.method.stack.index("train_epoch") < 5


def test_a_step_that_cannot_be_captured_says_what_to_do(learner: Learner) -> None:
    step = step_of(learner)

    def fail(*_: torch.Tensor) -> StepResult:
        raise CannotCaptureError("operation not permitted when stream is capturing")

    step.graphed.function = fail
    with pytest.raises(SodapError, match=r"residual-sodap .* not permitted .* graph_safe = False"):
        step(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.long))
