"""Gates, routers and experts, each against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from sodap.methods.parts.experts import DomainRouter, ExpertBlock, Gates, top_gates
from tests.methods.common import drawn


def naive_gates(logits: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """`[B, E]`, image by image."""
    gates = np.zeros_like(logits)
    for row, values in zip(gates, logits, strict=True):
        best = sorted(range(len(values)), key=lambda e: (-values[e], e))[:count]
        total = sum(np.exp(values[e]) for e in best)
        for e in best:
            row[e] = np.exp(values[e]) / total
    return gates


def dense(gates: Gates, experts: int) -> Tensor:
    return torch.zeros(len(gates.weight), experts, dtype=gates.weight.dtype).scatter(
        1, gates.expert, gates.weight
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_gates_against_a_loop(count: int) -> None:
    logits = drawn(40, 5)
    logits[7:12] = 0.0  # ties go to the lower indices
    logits[12, 1:4] = logits[12].max() + 1
    found = dense(top_gates(logits, count), 5)
    np.testing.assert_allclose(found.numpy(), naive_gates(logits.numpy(), count), atol=1e-14)


def test_router_against_its_formula() -> None:
    router = DomainRouter(7, 4).double()
    with torch.no_grad():
        router.weight.copy_(drawn(2, 7, 4))
    first = router.weight.detach().numpy().copy()
    router.start_domain()
    assert not router.weight.any()
    with torch.no_grad():
        router.weight.copy_(drawn(2, 7, 4, seed=1))
    both = [first, router.weight.detach().numpy()]

    token, domain = drawn(9, 7, seed=2), torch.arange(9) % 2
    plain = np.stack([x @ both[d][0] for x, d in zip(token.numpy(), domain, strict=True)])
    np.testing.assert_allclose(router(token, domain).detach().numpy(), plain, atol=1e-12)
    np.testing.assert_allclose(router(token).detach().numpy(), token.numpy() @ both[1][0])

    ε = drawn(9, 4, seed=5).numpy()
    width = np.stack([x @ both[d][1] for x, d in zip(token.numpy(), domain, strict=True)])
    noisy = plain + ε * (np.log1p(np.exp(width)) + 0.01)
    found = router(token, domain, torch.Generator().manual_seed(5))
    np.testing.assert_allclose(found.detach().numpy(), noisy, atol=1e-12)


def block_of(experts: int, top_k: int, *, scale: float = 0.1, dropout: float = 0.5) -> ExpertBlock:
    """A block of width 8 with random weights in float64."""
    block = ExpertBlock(
        8,
        experts=experts,
        top_k=top_k,
        bottleneck=3,
        scale=scale,
        dropout=dropout,
        generator=torch.Generator().manual_seed(0),
    ).double()
    with torch.no_grad():
        for seed, parameter in enumerate(block.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed))
    return block


@pytest.mark.parametrize(("experts", "top_k"), [(5, 2), (5, 1), (2, 2)])
def test_block_against_a_loop_over_images_and_experts(experts: int, top_k: int) -> None:
    block, before = block_of(experts, top_k), block_of(experts, top_k)
    block.freeze(torch.tensor([1]))
    with torch.no_grad():
        block.down[1] = block.up[1] = 7.0  # as weight decay would change the parameter
    tokens = drawn(6, 4, 8, seed=9)
    gates = block.route(tokens[:, 0])
    found = block(tokens, gates)

    # Autograd through the loop gives the gradients to compare with as well.
    expected = torch.zeros_like(tokens)
    for b, row in enumerate(dense(gates, experts)):
        for e, gate in enumerate(row):
            own = before if e == 1 else block
            hidden = (tokens[b] @ own.down[e].T + own.down_bias[e]).relu()
            expected[b] += gate * 0.1 * (hidden @ own.up[e] + own.up_bias[e])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    upstream = drawn(6, 4, 8, seed=10)
    trained = [block.down, block.down_bias, block.up, block.up_bias, block.router.weight]
    ours = torch.autograd.grad((found * upstream).sum(), trained, retain_graph=True)
    theirs = torch.autograd.grad((expected * upstream).sum(), trained)
    free = torch.arange(experts) != 1
    for one, two in zip(ours[:4], theirs[:4], strict=True):
        torch.testing.assert_close(one[free], two[free], rtol=1e-10, atol=1e-12)
        assert not one[1].any(), "a frozen expert passes no gradient to its parameter"
    torch.testing.assert_close(ours[4], theirs[4], rtol=1e-10, atol=1e-12)


def test_dropout_keeps_the_mean_and_is_drawn_from_the_generator() -> None:
    block = block_of(4, 2)
    tokens = drawn(2, 3, 8).repeat(4000, 1, 1)
    gates = block.route(tokens[:, 0])
    dropped, again = (
        block(tokens, gates, torch.Generator().manual_seed(1)).view(4000, 2, 3, 8) for _ in range(2)
    )
    assert torch.equal(dropped, again)
    whole = block(tokens, gates).view(4000, 2, 3, 8)[0]
    error = (dropped.mean(0) - whole).abs() / (dropped.std(0) / 4000**0.5 + 1e-12)
    assert dropped.std(0).max() > 0.01
    assert error.max() < 5


@pytest.mark.parametrize("experts", [2, 3])
def test_gates_keep_their_precision_under_autocast(experts: int) -> None:
    """Two experts that add +1 and -1: the result is the difference of their gates."""
    block = block_of(experts, 2, scale=1.0, dropout=0.0).float()
    with torch.no_grad():
        block.up.zero_()
        block.up_bias[0], block.up_bias[1] = 1.0, -1.0
    gates = Gates(torch.tensor([[0, 1]]), torch.tensor([[0.5005, 0.4995]]))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = block(torch.ones(1, 2, 8), gates)
    torch.testing.assert_close(found, torch.full((1, 2, 8), 0.001), rtol=1e-3, atol=0)


def test_frozen_experts_do_not_change_and_all_can_be_frozen() -> None:
    block = block_of(3, 2)
    block.freeze(torch.tensor([0, 2]))
    kept = block.expert_weights("up")[[0, 2]].clone()
    with torch.no_grad():
        block.up.zero_()
    block.freeze(torch.tensor([2, 1]))  # expert 2 is frozen already
    assert torch.equal(block.expert_weights("up")[[0, 2]], kept)
    assert block.frozen.all()
    assert not block.expert_weights("up")[1].any()
    assert block.trainable_count() == block.router.weight.numel()
