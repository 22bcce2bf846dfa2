"""Every registered method, through the same gates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.conftest import make_stream

from sodap.errors import SodapError
from sodap.learning import Learner, Training
from sodap.methods import build_method, find_method, method_names
from sodap.randomness import Randomness
from sodap.streams import MissingClassWarning, Split, Stream

TRAINING = Training(epochs=2, patience=2, batch_size=16, weight_decay=0.5)


def learner_of(method: str, stream: Stream, **options: Any) -> Learner:
    return Learner(stream.classes, method=method, training=TRAINING, options=options, device="cpu")


@pytest.fixture(scope="module", params=method_names())
def taught(request: pytest.FixtureRequest, stripes: Stream) -> Learner:
    learner = learner_of(request.param, stripes)
    for domain in stripes.domains:
        learner.learn(domain)
    return learner


def test_losses_are_finite_numbers(taught: Learner, stripes: Stream) -> None:
    split = stripes.domains[1].train
    images = taught.method.backbone.prepare(split.images)
    losses = taught.method.losses(images, split.labels, torch.Generator())
    assert all(loss.ndim == 0 and loss.isfinite() for loss in losses.values())
    assert taught.method.total(losses).isfinite()


def test_prediction_does_not_depend_on_the_batch(taught: Learner, stripes: Stream) -> None:
    images = stripes.domains[0].test.images
    whole = taught.predict(images).probabilities
    single = torch.cat([taught.predict(image[None]).probabilities for image in images])
    torch.testing.assert_close(whole, single, rtol=0, atol=1e-5)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    shuffled = taught.predict(images[order]).probabilities
    torch.testing.assert_close(whole[order], shuffled, rtol=0, atol=1e-5)


def test_the_backbone_never_changes(taught: Learner) -> None:
    untouched = learner_of(taught.method_name, make_stream())
    assert taught.method.backbone.digest() == untouched.method.backbone.digest()


def test_state_round_trip(taught: Learner, stripes: Stream) -> None:
    other = learner_of(taught.method_name, stripes)
    other.restore(taught.method.state(), 2, 2)
    images = stripes.domains[1].test.images
    assert torch.equal(other.predict(images).probabilities, taught.predict(images).probabilities)
    assert [vars(a) for a in other.stored()] == [vars(a) for a in taught.stored()]
    with pytest.raises(SodapError, match="does not fit"):
        other.restore({}, 2, 2)


def test_no_image_is_kept(taught: Learner, stripes: Stream) -> None:
    assert all(asset.images == 0 and asset.bytes > 0 for asset in taught.stored())
    # What is kept does not grow with the number of images seen.
    larger = make_stream(count=48)
    other = learner_of(taught.method_name, larger)
    for domain in larger.domains:
        other.learn(domain)

    def size(learner: Learner) -> int:
        return sum(tensor.nbytes for tensor in learner.method.state().values())

    assert size(other) == size(taught)
    held = [v for v in vars(other.method).values() if isinstance(v, torch.Tensor)]
    assert not held, "a tensor outside the state would escape the audit"


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("classes", [2, 10])
def test_any_number_of_classes(method: str, classes: int) -> None:
    stream = make_stream(domains=1, classes=classes)
    learner = learner_of(method, stream)
    learner.learn(stream.domains[0])
    assert learner.predict(stream.domains[0].test.images).probabilities.shape[1] == classes


@pytest.mark.parametrize("method", method_names())
def test_a_class_may_be_missing(method: str, stripes: Stream) -> None:
    learner = learner_of(method, stripes)
    for domain, absent in zip(stripes.domains, (2, 0), strict=True):
        kept = domain.train.labels != absent
        train = Split(domain.train.images[kept], domain.train.labels[kept])
        with pytest.warns(MissingClassWarning):
            learner.learn(replace(domain, train=train))
    scores = learner.evaluate(stripes.domains[0])
    assert 0 <= scores.accuracy <= 1
    assert 0 <= scores.macro_f1 <= 1


@pytest.mark.parametrize("method", method_names())
def test_a_stage_of_one_image(method: str, stripes: Stream) -> None:
    learner = learner_of(method, stripes)
    for domain in stripes.domains:
        with pytest.warns(MissingClassWarning):
            learner.learn(replace(domain, train=domain.train.take(1)))
    assert learner.stages_learned == 2


@pytest.mark.parametrize("method", method_names())
def test_every_option_says_what_it_is(method: str) -> None:
    for name, field in find_method(method).Config.model_fields.items():
        assert field.description, f"{method}.{name}"


def test_unknown_methods_and_options() -> None:
    with pytest.raises(SodapError, match=r"no method is called 'nothing'; .*residual-sodap"):
        find_method("nothing")
    backbone = Learner(["a", "b"]).method.backbone
    with pytest.raises(SodapError, match="option 'contxt' of residual-sodap"):
        build_method("residual-sodap", {"contxt": "cls"}, backbone, 2, Randomness(0))
    with pytest.raises(SodapError, match="option 'pool_size' of residual-sodap"):
        build_method("residual-sodap", {"pool_size": 0}, backbone, 2, Randomness(0))
