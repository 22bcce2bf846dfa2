"""The trace of training steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.conftest import TINY_VIT
from torch import Tensor

from sodap.execution import StepResult, TrainStep
from sodap.learning import Learner, StageProgress, Training
from sodap.learning.trace import Trace, TraceBuffer
from sodap.streams import Stream

CPU = torch.device("cpu")


def scalar(value: float) -> Tensor:
    return torch.tensor(value)


def test_values_are_copied() -> None:
    """A captured step overwrites its losses at every replay."""
    buffer = TraceBuffer(3, CPU)
    loss, weight = scalar(0.0), scalar(0.0)
    for step in range(3):
        loss.fill_(step)
        weight.fill_(10 + step)
        buffer.add(4, {"ce": loss}, {"ce": weight})
    trace = buffer.fetch(7)
    assert trace.losses["ce"].tolist() == [0, 1, 2]
    assert trace.weights["ce"].tolist() == [10, 11, 12]
    assert trace.epoch.tolist() == [7, 7, 7]
    assert trace.images.tolist() == [4, 4, 4]


def test_adding_a_step_does_not_read_values() -> None:
    """Tensors on `meta` have no values, so reading one is an error."""
    meta = torch.device("meta")
    loss = torch.empty((), device=meta, requires_grad=True)
    with pytest.raises(RuntimeError):
        float(loss)
    buffer = TraceBuffer(2, meta)
    for _ in range(2):
        buffer.add(4, {"ce": loss, "div": loss}, {"ce": loss})
    (table,) = buffer.tables.values()
    assert table.shape == (2, 3)


def test_a_loss_may_appear_later() -> None:
    buffer = TraceBuffer(3, CPU)
    buffer.add(2, {"ce": scalar(1.0)}, {})
    buffer.add(2, {"ce": scalar(2.0), "old": scalar(5.0)}, {})
    buffer.add(1, {"ce": scalar(4.0), "old": scalar(8.0)}, {})
    trace = buffer.fetch(1)
    assert list(trace.losses) == ["ce", "old"]
    assert trace.losses["old"].isnan().tolist() == [True, False, False]
    assert trace.means() == {"ce": 10 / 5, "old": pytest.approx(18 / 3)}
    assert buffer.not_finite(trace) == []
    assert trace.weights == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_differs_from_a_missing_one(bad: float) -> None:
    buffer = TraceBuffer(2, CPU)
    buffer.add(2, {"ce": scalar(1.0)}, {})
    buffer.add(2, {"ce": scalar(1.0), "old": scalar(bad)}, {})
    assert buffer.not_finite(buffer.fetch(1)) == ["old"]


def test_traces_are_concatenated_and_selected() -> None:
    def epoch(number: int, **losses: float) -> Trace:
        buffer = TraceBuffer(2, CPU)
        for images in (3, 1):
            buffer.add(images, {name: scalar(value) for name, value in losses.items()}, {})
        return buffer.fetch(number)

    both = Trace().concat(epoch(1, ce=1.0)).concat(epoch(2, ce=2.0, old=3.0))
    assert len(both) == 4
    assert both.epoch.tolist() == [1, 1, 2, 2]
    assert both.images.tolist() == [3, 1, 3, 1]
    assert both.losses["ce"].tolist() == [1, 1, 2, 2]
    assert both.losses["old"].isnan().tolist() == [True, True, False, False]
    again = Trace.from_tensors(both.tensors())
    assert again.select(2).losses["old"].tolist() == [3, 3]
    assert len(again.select(1, 2)) == 4
    assert len(again.select()) == 0


@pytest.mark.parametrize("method", ["residual-sodap", "sequential", "der++"])
def test_a_stage_has_the_trace_and_the_means_of_its_steps(
    method: str, stripes: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[int, dict[str, float], dict[str, float]]] = []
    call = TrainStep.__call__

    def observed(self: TrainStep, images: Tensor, labels: Tensor) -> StepResult:
        result = call(self, images, labels)
        losses = {name: float(loss) for name, loss in result.losses.items()}
        weights = {name: float(weight) for name, weight in self.method.loss_weights().items()}
        taken.append((len(labels), losses, weights))
        return result

    monkeypatch.setattr(TrainStep, "__call__", observed)
    training = Training(epochs=2, patience=2, batch_size=16, lr=3e-3)  # batches of 16 and of 8
    learner = Learner(stripes.classes, method=method, training=training, device="cpu", **TINY_VIT)
    for domain in stripes.domains:
        taken.clear()
        progress = learner.learn(domain)
        trace = progress.trace
        assert trace.epoch.tolist() == [1, 1, 2, 2]
        assert trace.images.tolist() == [16, 8, 16, 8] == [images for images, _, _ in taken]
        losses, weights = [step[1] for step in taken], [step[2] for step in taken]
        for kept, given in ((trace.losses, losses), (trace.weights, weights)):
            assert {name for step in given for name in step} == set(kept)
            for name, column in kept.items():
                expected = np.array([step.get(name, np.nan) for step in given], np.float32)
                assert np.array_equal(column.numpy(), expected, equal_nan=True)
        for row in progress.history:
            steps = [
                step for step, at in zip(taken, trace.epoch, strict=True) if at == row["epoch"]
            ]
            assert row["steps"] == len(steps)
            for name, mean in row["losses"].items():
                had = [(images, losses[name]) for images, losses, _ in steps if name in losses]
                sizes, values = zip(*had, strict=True)
                assert mean == pytest.approx(np.average(values, weights=sizes), rel=1e-12)
            assert row["weights"] == steps[-1][2], "weights at the end of the epoch"
    balanced = method == "residual-sodap"
    assert bool(progress.trace.weights) == balanced
    if balanced:
        assert len({step[2]["ce"] for step in taken}) == len(taken), "they change in every step"


def test_a_checkpoint_holds_the_trace(stripes: Stream) -> None:
    training = Training(epochs=1, patience=1, batch_size=16)
    learner = Learner(
        stripes.classes, method="sequential", training=training, device="cpu", **TINY_VIT
    )
    progress = learner.learn(stripes.domains[0])
    tensors = progress.tensors()
    again = StageProgress.restore(progress.metadata(), tensors).trace
    assert again.tensors().keys() == progress.trace.tensors().keys()
    assert torch.equal(again.losses["ce"], progress.trace.losses["ce"])
    older = {name: value for name, value in tensors.items() if not name.startswith("trace.")}
    assert len(StageProgress.restore(progress.metadata(), older).trace) == 0


def test_without_uncertainty_weighting_there_are_no_weights(stripes: Stream) -> None:
    training = Training(epochs=1, patience=1, batch_size=16)
    learner = Learner(
        stripes.classes, options={"uw": False}, training=training, device="cpu", **TINY_VIT
    )
    for domain in stripes.domains:
        assert learner.learn(domain).trace.weights == {}
