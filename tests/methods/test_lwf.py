"""Learning without forgetting: who teaches, what it says, and that it stands still."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sodap.learning import Learner, Training
from sodap.methods.lwf import Lwf
from sodap.streams import Stream
from tests.conftest import NO_IMAGES, make_batch

TRAINING = Training(epochs=1, batch_size=16)


def learner_of(stream: Stream, **options: object) -> tuple[Learner, Lwf]:
    learner = Learner(
        stream.classes, method="lwf", options=options, training=TRAINING, device="cpu"
    )
    assert isinstance(learner.method, Lwf)
    return learner, learner.method


def naive_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the two softened distributions less the teacher's entropy, times T²."""
    p, q = ((z.double() / temperature).softmax(1) for z in (teacher, student))
    return ((p * p.log() - p * q.log()).sum(1) * temperature**2).mean()


@pytest.mark.parametrize("trained", ["all", "head"])
def test_the_teacher_is_the_model_of_the_stage_before(stripes: Stream, trained: str) -> None:
    learner, model = learner_of(stripes, trained=trained, temperature=3.0, weight=0.7)
    split = stripes.domains[1].train
    images = model.backbone.prepare(split.images)

    learner.learn(stripes.domains[0])
    with torch.no_grad():
        former = model(images)
        noise = torch.Generator().manual_seed(1)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.01 * torch.randn(weight.shape, generator=noise))
    assert list(model.losses(make_batch(model, images, split.labels, noise))) == ["ce"]
    model.begin_stage(2, NO_IMAGES)
    losses = model.losses(make_batch(model, images, split.labels, noise))
    assert list(losses) == ["ce", "distill"]
    expected = 0.7 * naive_distillation(model(images), former, 3.0)
    assert expected > 1e-3, "the models must differ for this to say anything"
    torch.testing.assert_close(losses["distill"].double(), expected, rtol=1e-4, atol=1e-6)


def test_the_teacher_takes_no_gradient_and_never_trains(stripes: Stream) -> None:
    learner, model = learner_of(stripes)
    learner.learn(stripes.domains[0])
    assert model.teacher_network is not None
    assert model.network is not None
    assert model.teacher_network.digest() == model.network.digest()
    model.begin_stage(2, NO_IMAGES)
    model.train()
    assert not model.teacher_network.training, "dropout would make the teacher waver"
    split = stripes.domains[1].train
    losses = model.losses(make_batch(model, model.backbone.prepare(split.images), split.labels))
    model.total(losses).backward()  # type: ignore[no-untyped-call]
    teachers = [*model.teacher_network.parameters(), *model.teacher_head.parameters()]
    assert all(p.grad is None and not p.requires_grad for p in teachers)
    learning = {id(p) for group in model.parameter_groups(1, 1) for p in group["params"]}
    assert not learning & {id(p) for p in teachers}
    assert learning == {id(p) for p in model.parameters() if p.requires_grad}


def test_distillation_keeps_the_model_closer_to_the_former(stripes: Stream) -> None:
    images = stripes.domains[1].train.images

    def change(weight: float) -> float:
        learner, _ = learner_of(stripes, weight=weight)
        learner.learn(stripes.domains[0])
        before = learner.predict(images).probabilities
        learner.learn(stripes.domains[1])
        return float((learner.predict(images).probabilities - before).abs().mean())

    assert change(100.0) < 0.8 * change(0.0)


def test_what_is_stored(stripes: Stream) -> None:
    whole, head = learner_of(stripes)[1], learner_of(stripes, trained="head")[1]
    (asset,) = whole.stored()
    assert (asset.kind, asset.bytes, asset.images) == ("teacher", 4 * whole.trainable_count(), 0)
    (asset,) = head.stored()
    assert asset.bytes == 4 * (128 * 3 + 3)


def test_the_teacher_survives_a_round_trip(stripes: Stream) -> None:
    learner, model = learner_of(stripes)
    learner.learn(stripes.domains[0])
    other_learner, other = learner_of(stripes)
    other_learner.restore(model.state(), 2, 1)
    model.begin_stage(2, NO_IMAGES)
    split = stripes.domains[1].train
    images = model.backbone.prepare(split.images)
    one, two = (m.losses(make_batch(m, images, split.labels)) for m in (model, other))
    assert all(torch.equal(one[name], two[name]) for name in ("ce", "distill"))
