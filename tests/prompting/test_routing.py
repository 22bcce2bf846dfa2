import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.prompting import Router, Routing, entmax
from sodap.prompting.routing import Selection, unit

F_ROWS, A_ROWS = [0, 1, 2, 5], [3, 6]
ROUTERS = [
    Router(selection, combination)
    for selection in ("entmax", "softmax")
    for combination in ("residual", "joint")
]


def sets(*members: list[int], size: int = 8) -> Tensor:
    """The set that each of ``size`` rows is in: 0, 1, ... in the order given, or -1."""
    found = torch.full((size,), -1)
    for number, rows in enumerate(members):
        found[rows] = number
    return found


def routed(router: Router, query: Tensor, keys: Tensor, which: Tensor) -> Routing:
    return router.route(query, unit(keys), router.partition(which))


@pytest.fixture
def query() -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def keys() -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


def select(selection: Selection, logits: Tensor) -> Tensor:
    return entmax(logits / 1.5) if selection == "entmax" else (logits / 1.5).softmax(-1)


@pytest.mark.parametrize("selection", ["entmax", "softmax"])
def test_residual_routes_each_set_by_itself(
    query: Tensor, keys: Tensor, selection: Selection
) -> None:
    values = torch.randn(8, 6)
    routing = routed(Router(selection), query, keys, sets(F_ROWS, A_ROWS))
    cosine = F.cosine_similarity(query[:, None], keys[None], dim=-1)
    p_frozen = select(selection, cosine[:, F_ROWS]) @ values[F_ROWS]
    p_active = select(selection, cosine[:, A_ROWS]) @ values[A_ROWS]
    torch.testing.assert_close(routing.prompt(values), p_frozen + 0.1 * p_active)
    assert (routing.frozen[:, [3, 4, 6, 7]] == 0).all()
    assert (routing.active[:, [0, 1, 2, 4, 5, 7]] == 0).all()


@pytest.mark.parametrize("selection", ["entmax", "softmax"])
def test_joint_is_one_distribution(query: Tensor, keys: Tensor, selection: Selection) -> None:
    values = torch.randn(8, 6)
    routing = routed(Router(selection, "joint"), query, keys, sets(F_ROWS, A_ROWS))
    rows = F_ROWS + A_ROWS
    cosine = F.cosine_similarity(query[:, None], keys[None], dim=-1)
    expected = select(selection, cosine[:, rows]) @ values[rows]
    torch.testing.assert_close(routing.prompt(values), expected)
    torch.testing.assert_close(routing.joined, routing.frozen + routing.active)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("members", [(F_ROWS, A_ROWS), ([], A_ROWS), (F_ROWS, []), (A_ROWS,)])
def test_joined_weights_are_a_distribution(
    query: Tensor, keys: Tensor, router: Router, members: tuple[list[int], ...]
) -> None:
    routing = routed(router, query, keys, sets(*members))
    torch.testing.assert_close(routing.joined.sum(-1), torch.ones(4))
    assert (routing.joined[:, [4, 7]] == 0).all()


@pytest.mark.parametrize("router", ROUTERS)
def test_a_set_alone_has_full_scale(query: Tensor, keys: Tensor, router: Router) -> None:
    values = torch.randn(8, 6)
    alone = [
        routed(router, query, keys, which).prompt(values)
        for which in (sets([], A_ROWS), sets(A_ROWS))  # the first is stage 1
    ]
    expected = (
        select(router.selection, F.cosine_similarity(query[:, None], keys[A_ROWS], dim=-1))
        @ (values[A_ROWS])
    )
    torch.testing.assert_close(alone[0], expected)
    torch.testing.assert_close(alone[1], expected)


@pytest.mark.parametrize("selection", ["entmax", "softmax"])
def test_several_frozen_groups_add_up(query: Tensor, keys: Tensor, selection: Selection) -> None:
    """Each former A keeps the distribution that it had, whatever else is in the pool."""
    router, values = Router(selection), torch.randn(8, 6)
    together = routed(router, query, keys, sets([0, 1], [2, 5], A_ROWS))
    cosine = F.cosine_similarity(query[:, None], keys[None], dim=-1)
    expected = torch.zeros(4, 8)
    for rows in ([0, 1], [2, 5], A_ROWS):
        expected[:, rows] = select(selection, cosine[:, rows])
    torch.testing.assert_close(together.weights, expected)
    torch.testing.assert_close(together.frozen[:, [0, 1, 2, 5]], expected[:, [0, 1, 2, 5]])
    torch.testing.assert_close(together.frozen.sum(-1), torch.full((4,), 2.0))
    torch.testing.assert_close(together.active.sum(-1), torch.ones(4))
    torch.testing.assert_close(together.joined, expected / 3)
    first, second, third = (expected[:, rows] @ values[rows] for rows in ([0, 1], [2, 5], A_ROWS))
    torch.testing.assert_close(together.prompt(values), first + second + 0.1 * third)


def test_an_image_does_not_see_its_batch(query: Tensor, keys: Tensor) -> None:
    which = sets([0, 1], [2, 5], A_ROWS)
    together = routed(Router(), query, keys, which).weights
    for index in range(len(query)):
        alone = routed(Router(), query[index : index + 1], keys, which).weights
        torch.testing.assert_close(alone, together[index : index + 1], atol=1e-6, rtol=0)


def test_the_share_of_a_set_has_no_gradient(query: Tensor, keys: Tensor) -> None:
    keys = keys.double().requires_grad_()

    def weight(keys: Tensor) -> Tensor:
        return routed(Router(), query.double(), keys, sets(F_ROWS, A_ROWS)).joined

    assert torch.autograd.gradcheck(weight, (keys,))


def test_single_precision_under_autocast(query: Tensor, keys: Tensor) -> None:
    expected = routed(Router(), query, keys, sets(F_ROWS, A_ROWS))
    with torch.autocast("cpu", torch.bfloat16):
        routing = routed(Router(), query, keys, sets(F_ROWS, A_ROWS))
    assert routing.frozen.dtype == torch.float32
    torch.testing.assert_close(routing.frozen, expected.frozen)
    half = routed(Router(), query.bfloat16(), keys.bfloat16(), sets(F_ROWS, A_ROWS))
    assert half.prompt(keys.bfloat16()).dtype == torch.float32


def test_zero_vectors_route_evenly(keys: Tensor) -> None:
    query = torch.zeros(2, 6, requires_grad=True)
    routing = routed(Router(), query, keys, sets([], A_ROWS))
    assert routing.active[0, 3].item() == pytest.approx(0.5)
    torch.autograd.backward(routing.active.square().sum())
    assert query.grad is not None
    assert query.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [1.5, 1.0])
def test_random_cosines_are_not_sparse(temperature: float) -> None:
    """Full support iff (mean - min)² + variance < 4 temperature² / N: entmax alone is no sieve."""
    generator = torch.Generator().manual_seed(0)
    query, keys = (torch.randn(60, 512, generator=generator) for _ in range(2))
    routing = routed(Router(temperature=temperature), query, keys, sets(list(range(60)), size=60))
    assert (routing.active > 0).all()
    logits = np.zeros(60)
    logits[:9] = 1.01  # nine keys, one ahead by more than 2 · 1.5 / √9
    weights = entmax(torch.from_numpy(logits), temperature=1.5)
    assert (weights > 0).sum() == 9
    assert math.isclose(weights.sum().item(), 1)
