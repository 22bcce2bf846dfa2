"""DER++: what is kept, how it is replayed, and how the published form differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.learning import Learner, Training
from sodap.methods import Batch
from sodap.methods.der import Der
from sodap.streams import Stream
from tests.conftest import NO_IMAGES, make_batch
from tests.methods.common import learner_of


@pytest.fixture(scope="module")
def first_stage(stripes: Stream) -> Callable[[int], Der]:
    """A method that keeps so many images of stage 1 and has begun stage 2."""
    learner, trained = learner_of(Der, buffer=24)
    learner.learn(stripes.domains[0])

    def method(count: int) -> Der:
        other = learner_of(Der, buffer=count, alpha=0.3, beta=0.9)[1]
        state = trained.state()
        for name in ("images", "labels", "logits"):
            state[f"reservoir.{name}"] = state[f"reservoir.{name}"][:count]
        other.restore(state, 1)
        other.begin_stage(2, NO_IMAGES)
        return other

    return method


def test_losses_one_image_at_a_time(stripes: Stream, first_stage: Callable[[int], Der]) -> None:
    """A reservoir smaller than the batch is replayed whole, so the draw does not matter."""
    model = first_stage(5)
    split = stripes.domains[1].train
    images = model.backbone.prepare(split.images)

    def augment(kept: Tensor) -> Tensor:
        return model.backbone.prepare(kept.flip(-1))

    batch = Batch(images, split.labels, torch.Generator().manual_seed(3), augment)
    losses = model.losses(batch)
    assert list(losses) == ["ce", "logits", "labels"]
    kept = model.reservoir
    squares, surprises = [], []
    with torch.no_grad():
        for place in range(5):
            logits = model(augment(kept.images[place : place + 1]))[0]
            squares += [(logits - kept.logits[place]).square().mean()]
            surprises += [-logits.log_softmax(0)[kept.labels[place]]]
        plain = F.cross_entropy(model(images), split.labels)
    torch.testing.assert_close(losses["ce"].detach(), plain)
    expected = 0.3 * torch.stack(squares).mean()
    torch.testing.assert_close(losses["logits"].detach(), expected, rtol=1e-4, atol=1e-6)
    expected = 0.9 * torch.stack(surprises).mean()
    torch.testing.assert_close(losses["labels"].detach(), expected, rtol=1e-4, atol=1e-6)


def test_two_independent_draws_without_repetition(
    stripes: Stream, first_stage: Callable[[int], Der]
) -> None:
    model = first_stage(20)
    seen: list[Tensor] = []

    def augment(kept: Tensor) -> Tensor:
        seen.append(kept)
        return model.backbone.prepare(kept)

    split = stripes.domains[1].train.take(8)
    images = model.backbone.prepare(split.images)
    model.losses(Batch(images, split.labels, torch.Generator().manual_seed(0), augment))
    kept = model.reservoir.images
    places = [int((kept == image).flatten(1).all(1).nonzero()) for image in seen[0]]
    first, second = places[:8], places[8:]
    assert len(set(first)) == len(set(second)) == 8
    assert set(first) != set(second)


def test_plain_images_are_kept_with_the_logits_of_the_best_weights(stripes: Stream) -> None:
    learner, model = learner_of(Der, buffer=24)
    assert list(learner.learn(stripes.domains[0]).history[0]["losses"]) == ["ce"]
    kept, train = model.reservoir, stripes.domains[0].train

    def sorted_rows(images: Tensor, labels: Tensor) -> list[list[int]]:
        return sorted(torch.cat([images.flatten(1), labels[:, None]], 1).tolist())

    assert sorted_rows(kept.images, kept.labels) == sorted_rows(train.images, train.labels)
    with torch.no_grad():
        logits = model(model.backbone.prepare(kept.images))
    torch.testing.assert_close(kept.logits, logits, rtol=1e-4, atol=1e-5)


def test_the_reservoir_does_not_change_during_a_stage(stripes: Stream) -> None:
    learner, model = learner_of(Der, buffer=6)
    learner.learn(stripes.domains[0])
    before = model.reservoir.images.clone()
    during: list[Tensor] = []
    learner.learn(
        stripes.domains[1], on_epoch=lambda _: during.append(model.reservoir.images.clone())
    )
    assert all(torch.equal(before, images) for images in during)
    assert not torch.equal(before, model.reservoir.images)
    assert int(model.reservoir.seen) == 48
    assert model.graph_safe


def test_faithful_counts_every_epoch(stripes: Stream) -> None:
    training = Training(epochs=3, patience=3, batch_size=16)
    options = {"faithful": True, "buffer": 6}
    learner = Learner(stripes.classes, method="der++", options=options, training=training)
    model = learner.method
    assert isinstance(model, Der)
    assert not model.graph_safe
    seen: list[int] = []
    progress = learner.learn(
        stripes.domains[0], on_epoch=lambda _: seen.append(int(model.reservoir.seen))
    )
    assert seen == [24, 48, 72]
    assert int(model.reservoir.seen) == 24 * progress.best_epoch, "that of the best epoch"
    assert list(progress.history[0]["losses"]) == ["ce", "logits", "labels"], "from step 2 on"
    assert len(model.reservoir) == 6


def test_faithful_keeps_the_augmented_view_and_its_logits(stripes: Stream) -> None:
    _, model = learner_of(Der, faithful=True, buffer=4)
    model.begin_stage(1, NO_IMAGES)
    split = stripes.domains[0].train.take(4)
    images = model.backbone.prepare(split.images.flip(-1))
    with torch.no_grad():
        logits = model(images)
    model.losses(make_batch(model, images, split.labels, torch.Generator().manual_seed(0)))
    assert len(model.reservoir) == 0, "images enter after the step"
    model.after_step()
    assert torch.equal(model.reservoir.images, split.images.flip(-1))
    assert torch.equal(model.reservoir.labels, split.labels)
    torch.testing.assert_close(model.reservoir.logits, logits)


@pytest.mark.parametrize("faithful", [False, True])
def test_kept_images_are_declared_and_restored(stripes: Stream, faithful: bool) -> None:
    learner, model = learner_of(Der, buffer=30, faithful=faithful)
    assert [asset.images for asset in model.stored()] == [0]
    learner.learn(stripes.domains[0])
    (asset,) = model.stored()
    assert (asset.kind, asset.images) == ("images", 24)
    assert asset.bytes == 30 * (3 * 32 * 32 + 8 + 4 * 3) + 8

    _, other = learner_of(Der, buffer=30, faithful=faithful)
    other.restore(model.state(), 2)
    model.begin_stage(2, NO_IMAGES)
    split = stripes.domains[1].train
    images = model.backbone.prepare(split.images)
    one, two = (
        m.losses(make_batch(m, images, split.labels, torch.Generator().manual_seed(5)))
        for m in (model, other)
    )
    assert list(one) == ["ce", "logits", "labels"]
    assert all(torch.equal(one[name], two[name]) for name in one)
