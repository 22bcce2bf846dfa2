"""Online EWC: the Fisher information against slow and closed forms, and the penalty."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from sodap.backbones import FrozenViT
from sodap.execution import Runtime, TrainStep
from sodap.methods.ewc import CHUNK, Kind, OnlineEwc, squared_scores
from sodap.streams import Stream
from tests.conftest import NO_IMAGES, make_batch, make_split
from tests.methods.common import CLASSES, build, decayed, images_of, learner_of


def theta_of(model: OnlineEwc) -> Tensor:
    return parameters_to_vector(model.theta().values()).detach().clone()


def naive_scores(model: OnlineEwc, images: Tensor, labels: Tensor, kind: Kind) -> Tensor:
    """One image, one label, one backward pass at a time."""
    trained = list(model.theta().values())
    total = torch.zeros(sum(p.numel() for p in trained), dtype=torch.float64)
    for image, truth in zip(images, labels.tolist(), strict=True):
        classes = range(model(image[None]).shape[1]) if kind == "exact" else [truth]
        for label in classes:
            log_p = model(image[None]).log_softmax(1)[0, label]
            weight = 1.0 if kind == "empirical" else log_p.exp().item()
            gradients = torch.autograd.grad(log_p, trained)
            total += weight * torch.cat([g.flatten() for g in gradients]).double().square()
    return total


KINDS: list[Kind] = ["exact", "empirical", "mammoth"]


@pytest.mark.parametrize("kind", KINDS)
def test_fisher_of_the_network_against_a_loop(micro: FrozenViT, kind: Kind) -> None:
    model, images = build(OnlineEwc, micro).eval(), images_of(micro, CHUNK + 1)
    labels = torch.arange(CHUNK + 1) % CLASSES
    found = squared_scores(model, model.theta(), images, labels, kind, torch.Generator())
    expected = naive_scores(model, images, labels, kind).float()
    assert len(found) == model.trainable_count()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * float(expected.max()))


def softmax_regression() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    images = torch.randn(20, 1, 2, 3, generator=generator)
    return model, images, torch.randint(0, 4, (20,), generator=generator)


def test_fisher_of_a_softmax_regression_in_closed_form() -> None:
    """F of W[c, d] is the mean of p_c (1 - p_c) x_d²; of the bias, without x."""
    model, images, labels = softmax_regression()
    theta = dict(model.named_parameters())
    found = squared_scores(model, theta, images, labels, "exact", torch.Generator())
    p, x = model(images).detach().double().softmax(1), images.flatten(1).double()
    variance = p * (1 - p)
    expected = torch.cat([(variance.T @ x.square()).flatten(), variance.sum(0)])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


def test_drawn_labels_give_the_exact_fisher_on_average() -> None:
    model, images, labels = softmax_regression()
    theta = dict(model.named_parameters())
    exact = squared_scores(model, theta, images, labels, "exact", torch.Generator())
    generator = torch.Generator().manual_seed(4)
    many, wrong = images.repeat(150, 1, 1, 1), torch.zeros(3000, dtype=torch.int64)
    drawn = squared_scores(model, theta, many, wrong, "mc", generator) / 150
    torch.testing.assert_close(drawn.sum(), exact.sum(), rtol=0.05, atol=0)
    torch.testing.assert_close(drawn, exact, rtol=0.3, atol=0.02 * float(exact.max()))


def test_penalty_and_its_gradient(stripes: Stream) -> None:
    learner, model = learner_of(OnlineEwc, strength=7.0, fisher_images=8)
    assert list(learner.learn(stripes.domains[0]).history[0]["losses"]) == ["ce"]
    assert torch.equal(model.anchor, theta_of(model))
    model.begin_stage(2, NO_IMAGES)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.theta().values():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))
    split = stripes.domains[1].train
    losses = model.losses(
        make_batch(model, model.backbone.prepare(split.images), split.labels, generator)
    )
    moved = (theta_of(model) - model.anchor).double()
    expected = 7.0 * (model.fisher.double() * moved.square()).sum()
    assert expected > 0
    torch.testing.assert_close(losses["penalty"].double(), expected, rtol=1e-4, atol=0)
    pulls = torch.autograd.grad(losses["penalty"], list(model.theta().values()))
    found = torch.cat([pull.flatten() for pull in pulls])
    expected = 2 * 7.0 * model.fisher.double() * moved
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-9)


def test_a_strong_penalty_keeps_important_weights_closer(stripes: Stream) -> None:
    first, trained = learner_of(OnlineEwc, fisher="mc", fisher_images=8)
    first.learn(stripes.domains[0])

    def change(strength: float) -> float:
        learner, model = learner_of(OnlineEwc, strength=strength, fisher_images=8)
        learner.restore(trained.state(), 1, 1)
        learner.learn(stripes.domains[1])
        moved = theta_of(model) - theta_of(trained)
        return float((trained.fisher * moved.square()).sum())

    assert change(1e5) < 0.5 * change(0.0)


def test_fisher_decays_and_the_anchor_is_the_latest(stripes: Stream) -> None:
    learner, model = learner_of(OnlineEwc, gamma=0.25, fisher="empirical", fisher_images=10)
    for stage, domain in enumerate(stripes.domains, start=1):
        former = model.fisher.clone()
        ended = learner.learn(domain).ended["fisher"]
        assert ended["images"] == 10
        order = torch.randperm(24, generator=model.randomness.generator("reference order", stage))
        chosen = order[:10]
        images = model.backbone.prepare(domain.train.images[chosen])
        new = naive_scores(model, images, domain.train.labels[chosen], "empirical").float() / 10
        expected = 0.25 * former + new
        scale = float(expected.max())
        torch.testing.assert_close(model.fisher, expected, rtol=1e-3, atol=1e-5 * scale)
        assert ended["trace"] == pytest.approx(float(new.sum()), rel=1e-3)
        assert torch.equal(model.anchor, theta_of(model))


def test_faithful_counts_the_last_batch_as_full(stripes: Stream) -> None:
    learner, model = learner_of(OnlineEwc, faithful=True, fisher="exact", fisher_images=1)
    train = stripes.domains[0].train.take(14)  # batches of 12 and 2
    domain = dataclasses.replace(stripes.domains[0], train=train)
    assert learner.learn(domain).ended["fisher"]["images"] == 14
    images = model.backbone.prepare(train.images)
    expected = naive_scores(model, images, train.labels, "mammoth").float() / 24
    scale = float(expected.max())
    torch.testing.assert_close(model.fisher, expected, rtol=1e-3, atol=1e-5 * scale)


def test_faithful_trains_with_sgd(micro: FrozenViT) -> None:
    """A stage equals steps of SGD with the momentum and decay that are listed."""
    model = build(OnlineEwc, micro, faithful=True).train()
    twin = copy.deepcopy(model)
    groups = model.parameter_groups(0.1, 0.01)
    train_step = TrainStep(model, Runtime("cpu"), groups, batch_size=4)
    train_step.begin_epoch(1)
    images = make_split(4, CLASSES, 0.0, seed=5).images
    labels = torch.arange(4) % CLASSES
    weights = list(twin.theta().values())
    rates = [0.1 * twin.lr_factor(name) for name in twin.theta()]
    velocity = [torch.zeros_like(weight) for weight in weights]
    for _ in range(3):
        train_step(images, labels)
        losses = twin.losses(make_batch(twin, twin.backbone.prepare(images), labels))
        grads = torch.autograd.grad(twin.total(losses), weights, allow_unused=True)
        with torch.no_grad():
            for weight, rate, grad, v in zip(weights, rates, grads, velocity, strict=True):
                if grad is not None:
                    v.mul_(0.9).add_(grad + 5e-4 * weight)
                    weight.sub_(rate * v)
    torch.testing.assert_close(theta_of(model), theta_of(twin), rtol=1e-4, atol=1e-6)
    assert not model.graph_safe
    assert build(OnlineEwc, micro).sgd_momentum is None


def test_no_weight_decay_and_stored_bytes(micro: FrozenViT) -> None:
    model = build(OnlineEwc, micro)
    assert decayed(model) == set()
    size = 4 * model.trainable_count()
    assert [(a.kind, a.bytes, a.images) for a in model.stored()] == [
        ("fisher", size, 0),
        ("teacher", size, 0),
    ]


def test_half_precision_gives_nearly_the_same_fisher(micro: FrozenViT) -> None:
    model, images = build(OnlineEwc, micro).eval(), images_of(micro, 4)
    given = model, model.theta(), images, torch.arange(4) % CLASSES
    full = squared_scores(*given, "exact", torch.Generator())
    with torch.autocast("cpu", torch.bfloat16):
        half = squared_scores(*given, "exact", torch.Generator())
    assert half.dtype == torch.float32
    assert float((half - full).norm() / full.norm()) < 0.1
