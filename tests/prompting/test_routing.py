import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.prompting import Groups, PromptingOptions, Router, Routing, entmax

GENERATIONS = [3, 1, 2]  # rows of F, added in two stages, and of A


def router(**options: Any) -> Router:
    return Router(PromptingOptions(**options))


ROUTERS = [
    router(selection=selection, combination=combination, merge=merge)
    for selection in ("entmax", "softmax")
    for combination, merge in (("residual", "paper"), ("residual", "rescale"), ("joint", "paper"))
]


@pytest.fixture
def query() -> Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def keys() -> Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


def routed(by: Router, query: Tensor, keys: Tensor, generations: list[int]) -> Routing:
    return by.route(query, keys, by.groups(generations))


def select(by: Router, logits: Tensor) -> Tensor:
    return (logits / 1.5).softmax(-1) if by.softmax else entmax(logits, temperature=1.5)


def test_groups() -> None:
    paper, rescale, joint = router(merge="paper"), router(merge="rescale"), router(sodap=False)
    one = Groups((60,), (1.0,), 60)
    assert paper.groups([60]) == rescale.groups([60]) == joint.groups([60]) == one
    assert paper.groups([60, 24, 10]) == Groups((84, 10), (1.0, 0.1), 10)
    assert rescale.groups([60, 24, 10]) == Groups((60, 24, 10), (1.0, 1.0, 0.1), 10)
    assert joint.groups([60, 24, 10]) == Groups((94,), (1.0,), 10)
    assert router(residual=0.5).groups([4, 2]).scales == (1.0, 0.5)


@pytest.mark.parametrize("by", ROUTERS)
def test_each_set_is_routed_by_itself(query: Tensor, keys: Tensor, by: Router) -> None:
    values = torch.randn(6, 5)
    routing = routed(by, query, keys, GENERATIONS)
    cosine = F.cosine_similarity(query[:, None], keys[None], dim=-1)
    expected = torch.zeros(4, 5)
    start = 0
    for size, scale in zip(routing.groups.sizes, routing.groups.scales, strict=True):
        rows = slice(start, start + size)
        weights = select(by, cosine[:, rows])
        torch.testing.assert_close(routing.weights[:, rows], weights)
        expected = expected + scale * (weights @ values[rows])
        start += size
    torch.testing.assert_close(routing.prompt(values), expected)
    torch.testing.assert_close(routing.joined.sum(-1), torch.ones(4))
    assert routing.frozen.shape == (4, 4)
    assert routing.active.shape == (4, 2)
    assert torch.equal(torch.cat([routing.frozen, routing.active], -1), routing.weights)


@pytest.mark.parametrize("by", ROUTERS)
def test_stage_1_has_full_scale(query: Tensor, keys: Tensor, by: Router) -> None:
    values = torch.randn(6, 5)
    cosine = F.cosine_similarity(query[:, None], keys[None], dim=-1)
    found = routed(by, query, keys, [6]).prompt(values)
    torch.testing.assert_close(found, select(by, cosine) @ values)


@pytest.mark.parametrize("by", ROUTERS)
def test_an_image_does_not_depend_on_its_batch(query: Tensor, keys: Tensor, by: Router) -> None:
    together = routed(by, query, keys, GENERATIONS).weights
    for index in range(len(query)):
        alone = routed(by, query[index : index + 1], keys, GENERATIONS).weights
        torch.testing.assert_close(alone, together[index : index + 1], atol=1e-6, rtol=0)


def test_gradient_of_the_weights(query: Tensor, keys: Tensor) -> None:
    def weights(keys: Tensor) -> Tensor:
        return routed(router(), query.double(), keys, GENERATIONS).joined

    assert torch.autograd.gradcheck(weights, (keys.double().requires_grad_(),))


def test_zero_vectors_route_evenly(keys: Tensor) -> None:
    query = torch.zeros(2, 5, requires_grad=True)
    routing = routed(router(), query, keys, GENERATIONS)
    torch.testing.assert_close(routing.active, torch.full((2, 2), 0.5))
    torch.autograd.backward(routing.active.square().sum())
    assert query.grad is not None
    assert query.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [1.5, 1.0])
def test_random_cosines_are_not_sparse(temperature: float) -> None:
    """All weights are positive iff (mean - min)² + variance < 4 temperature² / N."""
    generator = torch.Generator().manual_seed(0)
    query, keys = (torch.randn(60, 512, generator=generator) for _ in range(2))
    routing = routed(router(temperature=temperature), query, keys, [60])
    assert (routing.weights > 0).all()
    logits = torch.zeros(60, dtype=torch.float64)
    logits[:9] = 1.01  # nine keys, ahead by more than 2 · 1.5 / √9
    weights = entmax(logits, temperature=1.5)
    assert (weights > 0).sum() == 9
    assert math.isclose(weights.sum().item(), 1)


def test_groups_count_their_rows() -> None:
    assert Groups((60, 24), (1.0, 0.1), 24).size == 84
