"""DUCT: merged weights, transported heads, and the answer of all heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from sodap.methods.duct import DUCT, SCALE
from sodap.methods.parts.transport import transport_plan
from sodap.streams import Stream
from tests.methods.common import learner_of


def row(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def test_the_network_is_the_sum_of_all_changes(stripes: Stream) -> None:
    learner, model = learner_of(DUCT, merge=0.3)
    start, expected = row(model.backbone), row(model.backbone)
    tuned: list[Tensor] = []
    for domain in stripes.domains:
        learned = learner.learn(domain, on_epoch=lambda _: tuned.append(row(model.network)))
        assert not torch.equal(tuned[-1], start)
        expected += 0.3 * learned.ended["similarity"] * (tuned[-1] - start)
        torch.testing.assert_close(row(model.network), expected)
        assert 0 < learned.ended["similarity"] <= 1
    assert torch.equal(row(model.backbone), start)


def test_similarity_is_the_mean_cosine_of_class_means(stripes: Stream) -> None:
    learner, model = learner_of(DUCT)
    domain = stripes.domains[0]
    images = model.backbone.prepare(domain.train.images)
    after: list[Tensor] = []

    def look(_: object) -> None:
        with torch.no_grad():
            after.append(model.network(images))

    learned = learner.learn(domain, on_epoch=look)
    before = model.frozen_features(images)
    cosines = [
        F.cosine_similarity(before[own].mean(0), after[0][own].mean(0), dim=0)
        for own in (domain.train.labels == label for label in range(3))
    ]
    assert learned.ended["similarity"] == pytest.approx(
        float(torch.stack(cosines).mean()), abs=1e-5
    )


def test_the_answer_is_the_largest_of_all_heads(stripes: Stream) -> None:
    learner, model = learner_of(DUCT)
    for domain in stripes.domains:
        learner.learn(domain)
    images = model.backbone.prepare(stripes.domains[0].test.images)
    with torch.no_grad():
        features = F.normalize(model.network(images))
        heads = [features @ F.normalize(head).T for head in model.heads]
        torch.testing.assert_close(model.eval()(images), SCALE * torch.maximum(*heads))


def test_old_heads_move_towards_the_transported_one(stripes: Stream) -> None:
    learner, model = learner_of(DUCT, head_merge=0.25)
    learner.learn(stripes.domains[0])
    old = model.heads[0].clone()
    learner.learn(stripes.domains[1])
    plan = transport_plan(torch.cdist(model.means[0], model.means[1]))
    torch.testing.assert_close(model.heads[0], 0.75 * old + 0.25 * plan @ model.heads[1])


@given(st.integers(1, 6), st.integers(0, 10_000), st.floats(0.01, 1000))
def test_a_plan_is_balanced(size: int, seed: int, scale: float) -> None:
    cost = scale * torch.rand(size, size, generator=torch.Generator().manual_seed(seed))
    plan = transport_plan(cost)
    assert (plan >= 0).all()
    torch.testing.assert_close(plan.sum(1), torch.ones(size))
    torch.testing.assert_close(plan, transport_plan(7 * cost), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_a_clear_plan_is_the_cheapest_assignment(seed: int) -> None:
    points = 10 * torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed + 1))
    cost = torch.cdist(points, points[order] + 0.01)
    _, expected = linear_sum_assignment(cost.numpy())
    assert np.array_equal(transport_plan(cost).argmax(1), expected)
    torch.testing.assert_close(transport_plan(torch.zeros(4, 4)), torch.full((4, 4), 0.25))
