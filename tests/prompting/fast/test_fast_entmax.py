from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
import torch
from entmax import entmax15, entmax_bisect, sparsemax
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sodap.prompting.fast import entmax

ALPHAS = [1.2, 1.5, 1.75, 2.0, 3.0]


def oracle(row: npt.NDArray[np.float64], alpha: float, factor: float) -> npt.NDArray[np.float64]:
    """``[factor (ℓ - τ)]_+ ^ (1/(α-1))``, τ by bisection in float64."""

    def weights(tau: float) -> npt.NDArray[np.float64]:
        power: npt.NDArray[np.float64] = np.maximum(factor * (row - tau), 0) ** (1 / (alpha - 1))
        return power

    low, high = row.max() - 1 / factor, row.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if weights(middle).sum() >= 1 else (low, middle)
    return weights(low)


def standard(logits: Tensor, alpha: float, temperature: float = 1.0) -> Tensor:
    rows = logits.double().numpy() / temperature
    return torch.from_numpy(np.stack([oracle(row, alpha, alpha - 1) for row in rows]))


@st.composite
def rows(draw: st.DrawFn) -> Tensor:
    """A few rows of float64 logits, with ties, of scales that make them dense or sparse."""
    size = draw(st.integers(1, 40))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0, 10.0, 1e4]))
    digits = draw(st.sampled_from([1, 15]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randn(3, size, generator=generator, dtype=torch.float64)
    return scale * logits.round(decimals=digits)


alphas = st.sampled_from(ALPHAS)


@settings(max_examples=60)
@given(rows(), alphas, st.sampled_from([0.3, 1.0, 1.5]))
def test_equals_bisection(logits: Tensor, alpha: float, temperature: float) -> None:
    weights = entmax(logits, alpha, temperature=temperature)
    torch.testing.assert_close(weights, standard(logits, alpha, temperature), atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, dtype=torch.float64))


@settings(max_examples=40)
@given(rows(), alphas)
def test_paper_prints_the_temperature_alpha(logits: Tensor, alpha: float) -> None:
    printed = np.stack([oracle(row, alpha, (alpha - 1) / alpha) for row in logits.numpy()])
    ours = entmax(logits, alpha, temperature=alpha)
    torch.testing.assert_close(ours, torch.from_numpy(printed), atol=1e-8, rtol=1e-6)


@settings(max_examples=40)
@given(rows(), alphas, st.randoms(use_true_random=False), st.floats(-100, 100))
def test_order_shift_and_neighbours_do_not_matter(
    logits: Tensor, alpha: float, random: Random, shift: float
) -> None:
    weights = entmax(logits, alpha)
    order = list(range(logits.shape[-1]))
    random.shuffle(order)
    torch.testing.assert_close(entmax(logits[:, order], alpha), weights[:, order])
    torch.testing.assert_close(entmax(logits + shift, alpha), weights, atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(entmax(logits[1], alpha), weights[1], atol=1e-15, rtol=1e-14)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(
    ("alpha", "theirs"),
    [
        (1.5, entmax15),
        (2.0, sparsemax),
        (1.3, lambda logits: entmax_bisect(logits, 1.3)),
        (2.5, lambda logits: entmax_bisect(logits, 2.5)),
    ],
)
def test_agrees_with_the_public_package(
    alpha: float, theirs: Callable[[Tensor], Tensor], scale: float
) -> None:
    logits = (scale * torch.randn(16, 60, dtype=torch.float64)).requires_grad_()
    signal = torch.randn(16, 60, dtype=torch.float64)
    ours = entmax(logits, alpha)
    torch.testing.assert_close(ours, theirs(logits), atol=1e-7, rtol=1e-5)
    (our_grad,) = torch.autograd.grad(ours, logits, signal)
    (their_grad,) = torch.autograd.grad(theirs(logits), logits, signal)
    torch.testing.assert_close(our_grad, their_grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_dimension(dim: int) -> None:
    logits = torch.randn(4, 5, 6)
    expected = entmax(logits.transpose(dim, -1)).transpose(dim, -1)
    torch.testing.assert_close(entmax(logits, dim=dim), expected)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients(alpha: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 1, 0, 1, 1], [0, 1, 0, 1, 0, 0, 1], [0] * 7], dtype=torch.bool)

    def masked(x: Tensor) -> Tensor:
        return entmax(x, alpha, temperature=0.7, mask=mask)

    assert gradcheck(lambda x: entmax(x, alpha), (logits,))
    assert gradcheck(masked, (logits,))
    assert gradgradcheck(lambda x: entmax(x, alpha), (logits,))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_mask_equals_leaving_out(alpha: float) -> None:
    logits = torch.randn(5, 9)
    mask = torch.tensor([1, 0, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    weights = entmax(logits, alpha, mask=mask)
    assert (weights[:, ~mask] == 0).all()
    torch.testing.assert_close(weights[:, mask], entmax(logits[:, mask], alpha))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_nothing_to_select(alpha: float) -> None:
    logits = torch.randn(2, 4, requires_grad=True)
    mask = torch.tensor([[False], [True]])
    weights = entmax(logits, alpha, mask=mask)
    torch.autograd.backward(weights.square().sum())
    assert logits.grad is not None
    assert (weights[0] == 0).all()
    assert (logits.grad[0] == 0).all()
    torch.testing.assert_close(weights[1], entmax(logits[1], alpha))
    assert logits.grad.isfinite().all()


def test_mask_broadcasts_to_groups() -> None:
    logits = torch.randn(5, 8)
    groups = torch.arange(8) % 3 == torch.arange(3)[:, None]
    weights = entmax(logits[:, None], mask=groups)
    assert weights.shape == (5, 3, 8)
    for index, group in enumerate(groups):
        torch.testing.assert_close(weights[:, index], entmax(logits, mask=group))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_extreme_logits(alpha: float) -> None:
    huge = torch.tensor([[1e4, -1e4, 9999.0, 0.0]], requires_grad=True)
    weights = entmax(huge, alpha)
    torch.testing.assert_close(weights, standard(huge.detach(), alpha).float())
    (grad,) = torch.autograd.grad(weights, huge, torch.randn_like(huge))
    assert grad.isfinite().all()
    ties = entmax(torch.full((2, 512), 1e4), alpha)
    torch.testing.assert_close(ties, torch.full((2, 512), 1 / 512), atol=0, rtol=1e-5)
    assert entmax(torch.tensor([[3.0]]), alpha).item() == 1
    ruled_out = entmax(torch.tensor([[0.3, -torch.inf, 0.2]]), alpha)
    torch.testing.assert_close(ruled_out[:, ::2], entmax(torch.tensor([[0.3, 0.2]]), alpha))


@pytest.mark.parametrize("gap", [0.5, 1.0, 1.5, 1.9])
def test_single_precision_keeps_small_weights(gap: float) -> None:
    """One key far ahead of many: running sums alone would lose the tail to rounding."""
    logits = 0.01 * torch.randn(8, 512) - gap
    logits[:, 0] = 0
    weights = entmax(logits)
    torch.testing.assert_close(weights.sum(-1), torch.ones(8), atol=3e-6, rtol=0)
    torch.testing.assert_close(weights, entmax(logits.double()).float(), atol=3e-7, rtol=0)


@pytest.mark.parametrize("leaders", [1, 3, 9])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_single_precision_at_the_edge_of_the_support(alpha: float, leaders: int) -> None:
    """All the rest lies where one rounding error decides whether it is selected."""
    edge = leaders ** (1 - alpha) / (alpha - 1)
    logits = 1e-5 * torch.randn(200, 512) - edge
    logits[:, :leaders] = 0
    weights = entmax(logits, alpha)
    torch.testing.assert_close(weights.sum(-1), torch.ones(200), atol=5e-6, rtol=0)
    torch.testing.assert_close(weights, entmax(logits.double(), alpha).float(), atol=5e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 60, 256, 1024, 4096])
def test_a_fixed_number_of_steps_is_enough(size: int, dtype: torch.dtype) -> None:
    """Scores that bend the curve anew at every step: crowds at geometric distances."""
    ladders = []
    for ratio in (0.5, 0.7, 0.9, 0.99):
        steps = ratio ** torch.arange(size, dtype=torch.float64)
        ladders += [-2 * (1 - steps), -2 * steps, -steps]
    crowds = torch.arange(size).log2().floor().nan_to_num(neginf=0.0).double()  # 1, 2, 4, 8, ...
    ladders += [-2 * factor ** -(crowds.max() - crowds) for factor in (1.3, 2.0, 4.0)]
    ladders += [-2 * (1 - factor**-crowds) for factor in (1.3, 2.0, 4.0)]
    for leaders in (1, 2, 9):
        edge = torch.full((size,), -2 * min(leaders, size) ** -0.5 + 1e-4, dtype=torch.float64)
        edge[:leaders] = 0
        ladders.append(edge)
    logits = torch.stack(ladders).to(dtype)
    precision = 1e-12 if dtype == torch.float64 else 1e-6
    found = entmax(logits).double()
    torch.testing.assert_close(found, standard(logits, 1.5), atol=precision, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_half_precision_is_computed_in_single(dtype: torch.dtype, alpha: float) -> None:
    logits = torch.randn(6, 60).to(dtype).requires_grad_()
    weights = entmax(logits, alpha)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(6), atol=2e-6, rtol=0)
    (grad,) = torch.autograd.grad(weights[:, 0].sum(), logits)
    assert grad.dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(entmax(logits, alpha), weights, atol=0, rtol=0)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.2])
def test_function_transforms(alpha: float) -> None:
    logits, signal = torch.randn(4, 9), torch.randn(9)
    mask = torch.arange(9) < 7

    def value(row: Tensor) -> Tensor:
        return entmax(row, alpha, mask=mask) @ signal

    torch.testing.assert_close(
        torch.vmap(lambda row: entmax(row, alpha))(logits), entmax(logits, alpha)
    )
    each = torch.vmap(torch.func.grad(value))(logits)
    leaf = logits.clone().requires_grad_()
    (together,) = torch.autograd.grad(value(leaf).sum(), leaf)
    torch.testing.assert_close(each, together)


@pytest.mark.parametrize(
    ("alpha", "backend", "dim"),
    [(1.5, "inductor", -1), (1.5, "aot_eager", 0), (2.0, "aot_eager", -1)],
)
def test_compiles_to_one_graph(alpha: float, backend: str, dim: int) -> None:
    logits = torch.randn(8, 12, requires_grad=True)
    mask = torch.arange(12) % 4 > 0

    def loss(x: Tensor) -> Tensor:
        weights = entmax(x, alpha, temperature=1.5, mask=mask, dim=dim)
        return (weights * torch.arange(12.0)).sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)(logits)
    (grad,) = torch.autograd.grad(compiled, logits)
    (expected,) = torch.autograd.grad(loss(logits), logits)
    torch.testing.assert_close(compiled, loss(logits))
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize(("alpha", "temperature"), [(1.0, 1.0), (0.5, 1.0), (1.5, 0.0)])
def test_refuses_what_is_not_entmax(alpha: float, temperature: float) -> None:
    with pytest.raises(ValueError, match=r"alpha|temperature"):
        entmax(torch.zeros(3), alpha, temperature=temperature)
