"""A ridge classifier learns domains in any order, and its probabilities are calibrated."""

from __future__ import annotations

import torch
from torch import Tensor

from sodap.methods.parts.ridge_classifier import RidgeClassifier

WIDTH, CLASSES = 6, 4


def domain(seed: int, count: int = 50, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    drawn = torch.randn(count, WIDTH, generator=generator)
    return seed + drawn + 3 * torch.nn.functional.one_hot(labels, WIDTH), labels


def learned(*domains: tuple[Tensor, Tensor]) -> RidgeClassifier:
    classifier = RidgeClassifier(CLASSES, WIDTH)
    for features, labels in domains:
        classifier.learn(features, labels)
    return classifier


def test_the_order_of_domains_does_not_matter() -> None:
    domains = [domain(seed) for seed in range(3)]
    one, two = learned(*domains), learned(*domains[::-1])
    torch.testing.assert_close(one.head, two.head)
    together = learned((torch.cat([f for f, _ in domains]), torch.cat([y for _, y in domains])))
    torch.testing.assert_close(one.head, together.head)


def test_probabilities_are_calibrated_and_right() -> None:
    features, labels = domain(0, 400)
    classifier = learned((features, labels))
    fresh, truth = domain(0, 2000)
    probabilities = classifier(fresh).exp()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2000, dtype=torch.float64))
    confidence, found = probabilities.max(1)
    accuracy = (found == truth).double().mean()
    assert accuracy > 0.9
    assert abs(confidence.mean() - accuracy) < 0.05
    weight, bias = classifier.linear()
    logits = fresh.double() @ weight.T + bias
    torch.testing.assert_close(logits.softmax(1), probabilities)


def test_a_class_without_an_image_is_impossible() -> None:
    classifier = learned(domain(0, classes=3))
    assert (classifier(domain(1)[0])[:, 3] == -torch.inf).all()
    assert classifier(domain(1)[0])[:, :3].isfinite().all()


def test_one_class_alone_is_certain() -> None:
    features, _ = domain(0)
    classifier = learned((features, torch.full((50,), 2)))
    torch.testing.assert_close(
        classifier(features).exp()[:, 2], torch.ones(50, dtype=torch.float64)
    )
