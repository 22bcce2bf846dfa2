from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from tests.conftest import TINY_VIT
from torch import Tensor

from sodap.evaluation import confusion_matrix
from sodap.execution import Forward, GraphedCallable, Runtime, TrainStep
from sodap.learning import Learner
from sodap.streams import Stream


@pytest.fixture(scope="module")
def learner(stripes: Stream) -> Learner:
    return Learner(stripes.classes, method="sequential", device="cpu", **TINY_VIT)


@pytest.mark.parametrize("graphs", [False, True])
def test_logits_of_batches_of_any_size(
    graphs: bool, learner: Learner, stripes: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With graphs, as on a GPU, smaller batches are padded."""
    monkeypatch.setattr(Runtime, "graphs", lambda *_: graphs)
    learner.method.train()  # predictions do not depend on the mode in which the method was left
    images = stripes.domains[0].test.images
    forward = Forward(learner.method, learner.runtime, 5)
    found = torch.cat([forward(some, pad=True) for some in torch.split(images, 5)])
    with torch.no_grad():
        expected = learner.method.eval()(learner.method.backbone.prepare(images))
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    torch.testing.assert_close(forward(images), expected)
    torch.testing.assert_close(torch.cat(list(forward.logits(torch.split(images, 7)))), expected)


def test_full_batches_and_padded_ones_use_a_graph(
    learner: Learner, stripes: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "graphs", lambda *_: True)
    forward = Forward(learner.method, learner.runtime, 5)
    sizes: list[int] = []

    def graphed(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return torch.zeros(len(images), 3)

    forward.graphed = graphed  # type: ignore[assignment]
    images = stripes.domains[0].test.images
    for count, pad in ((5, False), (3, False), (3, True), (7, True)):
        assert forward(images[:count], pad=pad).shape == (count, 3)
    assert sizes == [5, 5], "a single smaller batch is not worth a graph, a larger one has none"
    hook = learner.method.head.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    forward(images[:5])
    hook.remove()
    assert sizes == [5, 5], "a replay calls no hooks"


def test_a_graph_is_dropped_when_tensors_move(stripes: Stream) -> None:
    learner = Learner(stripes.classes, method="sequential", device="cpu", **TINY_VIT)
    forward = Forward(learner.method, learner.runtime, 5)
    forward.uses_graphs = True
    first, images = forward.graphed, stripes.domains[0].test.images
    list(forward.logits([images]))
    head = learner.method.head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.bias.add_(1)
    list(forward.logits([images]))
    assert forward.graphed is first, "numbers may change in place"
    head.bias = torch.nn.Parameter(head.bias.detach().clone())
    list(forward.logits([images]))
    assert forward.graphed is not first


def test_graphs_are_freed_without_the_garbage_collector(learner: Learner) -> None:
    """A graph holds gigabytes of GPU memory, which the next stage needs."""
    method, runtime = learner.method, learner.runtime
    groups = method.parameter_groups(1e-3, 0.0)
    gc.disable()
    try:
        step: weakref.ref[GraphedCallable[Any]]
        step = weakref.ref(TrainStep(method, runtime, groups, 4).graphed)
        forward = weakref.ref(Forward(method, runtime, 4).graphed)
        left = (step(), forward())
    finally:
        gc.enable()
    assert left == (None, None)


def test_evaluate_and_predict_agree(stripes: Stream) -> None:
    learner = Learner(stripes.classes, method="ncm", device="cpu", **TINY_VIT)
    learner.learn(stripes.domains[0])
    split = stripes.domains[1].test
    scores, predicted = learner.evaluate(split), learner.predict(split.images)
    assert [learner.classes[i] for i in scores.predictions.classes] == predicted.labels
    confidence = predicted.probabilities.amax(-1)
    torch.testing.assert_close(scores.predictions.confidence, confidence)
    matrix = confusion_matrix(split.labels, scores.predictions.classes, len(stripes.classes))
    assert (matrix == scores.confusion).all()


class Uncopyable:
    """Cannot be copied, like a CUDA graph."""

    def __deepcopy__(self, memo: Any) -> None:
        raise TypeError("cannot be copied")


def test_a_learner_that_has_predicted_can_be_copied(stripes: Stream) -> None:
    learner = Learner(stripes.classes, method="ncm", device="cpu", **TINY_VIT)
    learner.learn(stripes.domains[0])
    before = learner.evaluate(stripes.domains[0]).predictions
    learner.forward.graphed.graphs[()] = Uncopyable()  # type: ignore[assignment]
    twin = copy.deepcopy(learner)
    assert twin.forward.method is twin.method is not learner.method
    after = twin.evaluate(stripes.domains[0]).predictions
    assert torch.equal(before.confidence, after.confidence)


def test_routing_is_that_of_the_method(stripes: Stream) -> None:
    learner = Learner(stripes.classes, device="cpu", **TINY_VIT)
    images = stripes.domains[0].test.images
    found = learner.forward.routing(images)
    expected = learner.method.eval().routing(learner.method.backbone.prepare(images))
    assert found is not None
    assert expected is not None
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.weights, other.weights)
    assert (
        Learner(stripes.classes, method="ncm", device="cpu", **TINY_VIT).forward.routing(images)
        is None
    )
