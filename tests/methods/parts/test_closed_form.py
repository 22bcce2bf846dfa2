"""Closed-form heads: independent of order, and without classes that were never seen."""

from __future__ import annotations

from itertools import accumulate, pairwise, permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sodap.backbones import build_backbone
from sodap.learning import Learner
from sodap.methods import build_method
from sodap.methods.parts.closed_form import ClosedFormHead
from sodap.randomness import Randomness
from sodap.streams import Domain, MissingClassWarning, Split, Stream

BACKBONE = build_backbone()

every_head = pytest.mark.parametrize(
    ("method", "options"),
    [
        pytest.param("ncm", {"distance": "cosine"}, id="ncm cosine"),
        pytest.param("ncm", {"distance": "euclid"}, id="ncm euclid"),
        pytest.param("slda", {"priors": "uniform", "shrinkage": 1e-2}, id="slda uniform"),
        pytest.param("slda", {"priors": "counts", "shrinkage": 1e-2}, id="slda counts"),
    ],
)


def a_learner(stream: Stream, method: str, options: dict[str, Any]) -> Learner:
    return Learner(stream.classes, method=method, options=options, device="cpu")


def drawn(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Features of three classes of unequal size, far from the origin."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 0, 0, 1, 1, 2]).repeat(count // 6 + 1)[:count]
    centres = 3 + torch.randn(3, BACKBONE.width, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, BACKBONE.width, generator=generator, dtype=torch.float64)
    return centres[labels] + noise, labels


@every_head
@settings(max_examples=5)
@given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_the_order_of_domains_does_not_matter(
    method: str, options: dict[str, Any], sizes: list[int], seed: int
) -> None:
    features, labels = drawn(seed, sum(sizes) + 6)
    bounds = [0, *accumulate(sizes[:-1]), len(labels)]  # the last part takes the rest
    parts = [(features[low:high], labels[low:high]) for low, high in pairwise(bounds)]
    heads = []
    for order in list(permutations(parts))[:6]:
        learned = build_method(method, options, BACKBONE, 3, Randomness(0))
        assert isinstance(learned, ClosedFormHead)
        for part in order:
            learned.update(*part)
        heads.append(learned.solve())
    for weight, bias in heads[1:]:
        torch.testing.assert_close(weight, heads[0][0], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(bias, heads[0][1], rtol=1e-8, atol=1e-8)


def without(domain: Domain, absent: int) -> Domain:
    kept = domain.train.labels != absent
    train = Split(domain.train.images[kept], domain.train.labels[kept])
    return Domain(domain.name, train, domain.val, domain.test)


@every_head
def test_a_class_never_seen_is_never_predicted(
    method: str, options: dict[str, Any], stripes: Stream
) -> None:
    learner = a_learner(stripes, method, options)
    images = stripes.domains[0].test.images
    with pytest.warns(MissingClassWarning):
        learner.learn(without(stripes.domains[0], 1))
    before = learner.predict(images).probabilities
    assert (before[:, 1] == 0).all()
    assert before.isfinite().all()
    # Once a domain has it, it can be predicted.
    learner.learn(stripes.domains[1])
    assert (learner.predict(images).probabilities[:, 1] > 0).any()


@every_head
def test_one_image_per_class_is_enough(
    method: str, options: dict[str, Any], stripes: Stream
) -> None:
    """Without covariance, `slda` uses a spherical one."""
    domain = stripes.domains[0]
    learner = a_learner(stripes, method, options)
    learner.learn(Domain("few", domain.train.take(3), domain.val, domain.test))
    assert learner.predict(domain.train.images[:3]).labels == list(stripes.classes)
