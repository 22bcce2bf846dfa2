"""Streaming linear discriminant analysis, against scikit-learn and plain loops."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from sodap.backbones import FrozenViT, build_backbone
from sodap.errors import SodapError
from sodap.learning import Learner
from sodap.methods import build_method
from sodap.methods.slda import StreamingLDA
from sodap.randomness import Randomness
from sodap.streams import Stream


@pytest.fixture(scope="module")
def backbone() -> FrozenViT:
    return build_backbone()


def slda(backbone: FrozenViT, classes: int = 3, **options: Any) -> StreamingLDA:
    return cast(StreamingLDA, build_method("slda", options, backbone, classes, Randomness(0)))


def drawn(backbone: FrozenViT, seed: int, count: int = 90) -> tuple[Tensor, Tensor]:
    """Features of three classes of unequal size, far from the origin and not spherical."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(backbone.width, backbone.width, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 1, 2]).repeat(count // 6)
    centres = 3 + torch.randn(3, backbone.width, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, backbone.width, generator=generator, dtype=torch.float64)
    return centres[labels] + noise @ mix / 5, labels


@pytest.mark.parametrize("shrinkage", [1e-4, 0.1, 1.0])
def test_counts_as_priors_against_scikit_learn(backbone: FrozenViT, shrinkage: float) -> None:
    features, labels = drawn(backbone, 0)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    reference.fit(features.numpy(), labels.numpy())
    method = slda(backbone, shrinkage=shrinkage, priors="counts")
    for start in range(0, 90, 17):  # in batches
        method.update(features[start : start + 17], labels[start : start + 17])
    weight, bias = method.solve()
    scale = np.abs(reference.coef_).max()
    np.testing.assert_allclose(weight, reference.coef_, rtol=1e-6, atol=1e-8 * scale)
    np.testing.assert_allclose(bias, reference.intercept_, rtol=1e-6)
    queries, _ = drawn(backbone, 1)
    expected = reference.decision_function(queries.numpy())
    np.testing.assert_allclose(queries @ weight.T + bias, expected, rtol=1e-5, atol=1e-5 * scale)


def by_hand(
    features: NDArray[np.float64], labels: NDArray[np.int64], classes: int, shrinkage: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The published head, image by image, with uniform priors."""
    width = features.shape[1]
    means = np.stack([features[labels == index].mean(0) for index in range(classes)])
    covariance = np.zeros((width, width))
    for row, label in zip(features, labels, strict=True):
        covariance += np.outer(row - means[label], row - means[label]) / len(features)
    shrunk = (1 - shrinkage) * covariance
    shrunk += shrinkage * np.trace(covariance) / width * np.eye(width)
    precision = np.linalg.inv(shrunk)
    weight = means @ precision
    return weight, -0.5 * np.einsum("cd,cd->c", weight, means)


def test_uniform_priors_against_a_loop(backbone: FrozenViT) -> None:
    features, labels = drawn(backbone, 2)
    method = slda(backbone, shrinkage=1e-2)
    method.update(features, labels)
    weight, bias = method.solve()
    expected_weight, expected_bias = by_hand(features.numpy(), labels.numpy(), 3, 1e-2)
    scale = np.abs(expected_weight).max()
    np.testing.assert_allclose(weight, expected_weight, rtol=1e-7, atol=1e-9 * scale)
    np.testing.assert_allclose(bias, expected_bias, rtol=1e-7)


def test_a_learner_predicts_with_this_head(stripes: Stream) -> None:
    """From images to logits, with the training features of both domains."""
    learner = Learner(stripes.classes, method="slda", options={"shrinkage": 0.1}, device="cpu")
    for domain in stripes.domains:
        learner.learn(domain)
    backbone = learner.method.backbone
    train = torch.cat([domain.train.images for domain in stripes.domains])
    labels = torch.cat([domain.train.labels for domain in stripes.domains])
    test = stripes.domains[0].test.images
    with torch.no_grad():
        features = backbone(backbone.prepare(train)).double().numpy()
        queries = backbone(backbone.prepare(test)).double().numpy()
        found = learner.method(backbone.prepare(test)).numpy()
    weight, bias = by_hand(features, labels.numpy(), 3, 0.1)
    np.testing.assert_allclose(found, queries @ weight.T + bias, rtol=1e-3, atol=1e-2)


def test_shrinkage_must_be_positive(backbone: FrozenViT) -> None:
    with pytest.raises(SodapError, match="option 'shrinkage' of slda"):
        slda(backbone, shrinkage=0)
