"""Learning without forgetting: the teacher and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sodap.methods.lwf import Lwf
from sodap.streams import Stream
from tests.conftest import NO_IMAGES
from tests.methods.common import HEAD, images_of, learner_of, losses_of


@pytest.fixture(scope="module")
def first_stage(stripes: Stream) -> Callable[..., Lwf]:
    """A method that has learned the first domain, with other options if asked for."""
    trained: dict[str, dict[str, Tensor]] = {}

    def method(which: str = "all", **options: Any) -> Lwf:
        if which not in trained:
            learner, first = learner_of(Lwf, trained=which)
            learner.learn(stripes.domains[0])
            trained[which] = first.state()
        restored = learner_of(Lwf, trained=which, **options)[1]
        restored.restore(trained[which], 1)
        return restored

    return method


def naive_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence of the softened distributions, times T², in float64."""
    p, q = ((z.double() / temperature).softmax(1) for z in (teacher, student))
    return ((p * p.log() - p * q.log()).sum(1) * temperature**2).mean()


@pytest.mark.parametrize("which", ["all", "head"])
def test_the_teacher_is_the_model_of_the_previous_stage(
    first_stage: Callable[..., Lwf], which: str
) -> None:
    model = first_stage(which, temperature=3.0, weight=0.7)
    images = images_of(model.backbone, 9, tint=40)
    with torch.no_grad():
        previous = model(images)
        noise = torch.Generator().manual_seed(1)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.01 * torch.randn(weight.shape, generator=noise))
    assert list(losses_of(model, images)) == ["ce"], "stage 1 has no teacher"
    model.begin_stage(2, NO_IMAGES)
    losses = losses_of(model, images)
    assert list(losses) == ["ce", "distill"]
    expected = 0.7 * naive_distillation(model(images), previous, 3.0)
    assert expected > 1e-3, "otherwise the models are too similar to compare"
    torch.testing.assert_close(losses["distill"].double(), expected, rtol=1e-4, atol=1e-6)


def test_the_teacher_never_trains(first_stage: Callable[..., Lwf]) -> None:
    model = first_stage()
    assert model.teacher_network is not None
    assert model.network is not None
    assert model.teacher_network.digest() == model.network.digest()
    model.begin_stage(2, NO_IMAGES)
    model.train()
    assert not model.teacher_network.training
    torch.autograd.backward(model.total(losses_of(model, images_of(model.backbone, 6))))
    teachers = [*model.teacher_network.parameters(), *model.teacher_head.parameters()]
    assert all(p.grad is None and not p.requires_grad for p in teachers)
    learning = {id(p) for group in model.parameter_groups(1, 1) for p in group["params"]}
    assert learning == {id(p) for p in model.parameters() if p.requires_grad}
    assert not learning & {id(p) for p in teachers}


def test_distillation_keeps_predictions_closer(
    stripes: Stream, first_stage: Callable[..., Lwf]
) -> None:
    images = stripes.domains[1].train.images

    def change(weight: float) -> float:
        learner, _ = learner_of(Lwf, weight=weight)
        learner.restore(first_stage().state(), 1, 1)
        before = learner.predict(images).probabilities
        learner.learn(stripes.domains[1])
        return float((learner.predict(images).probabilities - before).abs().mean())

    assert change(100.0) < 0.8 * change(0.0)


def test_stored_bytes(first_stage: Callable[..., Lwf]) -> None:
    for model, numbers in (
        (whole := first_stage(), whole.trainable_count()),
        (first_stage("head"), HEAD),
    ):
        (asset,) = model.stored()
        assert (asset.kind, asset.bytes, asset.images) == ("teacher", 4 * numbers, 0)
