"""Nearest class mean, against scikit-learn and plain loops."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from sodap.backbones import build_backbone
from sodap.learning import Learner
from sodap.methods import build_method
from sodap.methods.ncm import NearestClassMean
from sodap.randomness import Randomness
from sodap.streams import Stream
from tests.conftest import make_stream


def ncm(classes: int = 3, **options: Any) -> NearestClassMean:
    method = build_method("ncm", options, build_backbone(), classes, Randomness(0))
    return cast(NearestClassMean, method)


def learned(stream: Stream, **options: Any) -> Learner:
    learner = Learner(stream.classes, method="ncm", options=options, device="cpu")
    for domain in stream.domains:
        learner.learn(domain)
    return learner


def all_features(learner: Learner, stream: Stream) -> tuple[Tensor, Tensor]:
    """Features of the training images of all domains, in float64."""
    images = torch.cat([domain.train.images for domain in stream.domains])
    labels = torch.cat([domain.train.labels for domain in stream.domains])
    backbone = learner.method.backbone
    with torch.no_grad():
        return backbone(backbone.prepare(images)).double(), labels


def test_euclid_against_scikit_learns_nearest_centroid() -> None:
    stream = make_stream(domains=3, classes=4)
    learner = learned(stream, distance="euclid")
    features, labels = all_features(learner, stream)
    reference = NearestCentroid().fit(features.numpy(), labels.numpy())
    method = cast(NearestClassMean, learner.method)
    np.testing.assert_allclose(method.statistics.mean, reference.centroids_, atol=1e-9)
    images = torch.cat([domain.test.images for domain in stream.domains])
    with torch.no_grad():
        queries = method.backbone(method.backbone.prepare(images))
    expected = [stream.classes[index] for index in reference.predict(queries.double().numpy())]
    assert learner.predict(images).labels == expected
    assert len(set(expected)) == 4


def test_cosine_against_a_loop() -> None:
    stream = make_stream(domains=2, classes=3)
    learner = learned(stream, distance="cosine")
    features, labels = all_features(learner, stream)
    means = []
    for index in range(3):
        units = [row / row.norm() for row in features[labels == index]]
        mean = torch.stack(units).sum(0)
        means.append(mean / mean.norm())
    method = learner.method
    images = method.backbone.prepare(stream.domains[1].test.images)
    with torch.no_grad():
        queries = method.backbone(images).double()
        cosine = torch.nn.functional.normalize(queries) @ torch.stack(means).T
        logits = method(images).double()
    assert torch.equal(logits.argmax(1), cosine.argmax(1))
    # Logits are cosines up to one factor and one shift.
    shift = logits - logits.mean(1, keepdim=True)
    angle = cosine - cosine.mean(1, keepdim=True)
    factor = (shift * angle).sum() / angle.square().sum()
    assert factor > 0
    torch.testing.assert_close(shift, factor * angle, rtol=1e-3, atol=1e-3 * float(factor))


def test_probabilities_are_the_posterior_of_spherical_classes() -> None:
    """Two classes with one variance: the posterior of a point, from the densities."""
    method = ncm(2, distance="euclid")
    width = method.backbone.width
    generator = torch.Generator().manual_seed(0)
    centres = 0.1 * torch.randn(2, width, generator=generator, dtype=torch.float64)
    labels = torch.arange(4000) % 2
    noise = torch.randn(4000, width, generator=generator, dtype=torch.float64)
    method.update(centres[labels] + 0.5 * noise, labels)
    weight, bias = method.solve()
    point = centres.mean(0) + 0.02
    found = (weight @ point + bias).softmax(0)
    squared = (point - centres).square().sum(1)
    expected = (-squared / (2 * 0.5**2)).softmax(0)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
