from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch

from sodap.evaluation import confusion_matrix
from sodap.learning import Learner
from sodap.learning.forward import Forward
from sodap.learning.step import Step, make_optimizer
from sodap.streams import Augmentation, Stream


@pytest.fixture(scope="module")
def learner(stripes: Stream) -> Learner:
    return Learner(stripes.classes, method="sequential", device="cpu")


def test_logits_of_batches_of_any_size(learner: Learner, stripes: Stream) -> None:
    learner.method.train()  # a prediction does not depend on how the method was left
    images = stripes.domains[0].test.images
    forward = Forward(learner.method, learner.fabric, 5)
    found = torch.cat([forward(some) for some in torch.split(images, 5)])
    with torch.no_grad():
        expected = learner.method.eval()(learner.method.backbone.prepare(images))
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    torch.testing.assert_close(forward(images), expected)


def test_nobody_waits_for_the_garbage_collector(learner: Learner) -> None:
    """A recording holds gigabytes, which the next stage needs."""
    method, fabric = learner.method, learner.fabric
    optimizer = make_optimizer(method.parameter_groups(1e-3, 0.0), fabric.device)
    gc.disable()
    try:
        step = weakref.ref(Step(method, optimizer, fabric, 4, Augmentation()).recorded)
        forward = weakref.ref(Forward(method, fabric, 4).recorded)
        left = (step(), forward())
    finally:
        gc.enable()
    assert left == (None, None)


def test_answers_are_those_of_predict(stripes: Stream) -> None:
    learner = Learner(stripes.classes, method="ncm", device="cpu")
    learner.learn(stripes.domains[0])
    split = stripes.domains[1].test
    scores, said = learner.evaluate(split), learner.predict(split.images)
    assert [learner.classes[i] for i in scores.answers.classes] == said.labels
    torch.testing.assert_close(scores.answers.confidence, said.probabilities.amax(-1))
    matrix = confusion_matrix(split.labels, scores.answers.classes, len(stripes.classes))
    assert (matrix == scores.confusion).all()


class Uncopyable:
    """As a CUDA graph is."""

    def __deepcopy__(self, memo: Any) -> None:
        raise TypeError("cannot be copied")


def test_a_learner_that_has_predicted_can_be_copied(stripes: Stream) -> None:
    learner = Learner(stripes.classes, method="ncm", device="cpu")
    learner.learn(stripes.domains[0])
    before = learner.evaluate(stripes.domains[0]).answers
    forward = learner._forward
    assert forward is not None
    forward.recorded.recordings[()] = Uncopyable()  # type: ignore[assignment]
    twin = copy.deepcopy(learner)
    assert twin._forward is not None
    assert twin._forward.method is twin.method is not learner.method
    after = twin.evaluate(stripes.domains[0]).answers
    assert torch.equal(before.confidence, after.confidence)
