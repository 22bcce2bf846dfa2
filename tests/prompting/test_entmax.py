"""The plain entmax, against the public package and against its definition."""

import pytest
import torch
from entmax import entmax15, entmax_bisect, sparsemax
from torch import Tensor
from torch.autograd import gradcheck

from sodap.prompting import entmax

ALPHAS = [1.2, 1.5, 1.75, 2.0, 3.0]


def logits(scale: float, size: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(4, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_weights_solve_the_definition(alpha: float, scale: float) -> None:
    z = logits(scale)
    weights = entmax(z, alpha, temperature=0.7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, dtype=torch.float64))
    # On the support w^(α-1) = (α-1) ℓ/temperature - τ with one τ a row; off it, not above τ.
    for row, w in zip((alpha - 1) * z / 0.7, weights, strict=True):
        tau = (row - w ** (alpha - 1))[w > 0]
        torch.testing.assert_close(tau, tau[:1].expand_as(tau), atol=1e-6, rtol=1e-9)
        assert (row[w == 0] <= tau.max() + 1e-6).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_agrees_with_the_public_package(alpha: float) -> None:
    exact = {1.5: entmax15, 2.0: sparsemax}
    z, signal = logits(1.0).requires_grad_(), logits(1.0, 12).flip(0)
    weights = entmax(z, alpha)
    expected = exact[alpha](z) if alpha in exact else entmax_bisect(z, alpha=alpha, n_iter=80)
    torch.testing.assert_close(weights, expected, atol=1e-9, rtol=1e-7)
    (grad,) = torch.autograd.grad(weights, z, signal)
    (expected_grad,) = torch.autograd.grad(expected, z, signal)
    torch.testing.assert_close(grad, expected_grad, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_printed_form_has_a_temperature_of_alpha(alpha: float) -> None:
    z = logits(3.0)
    weights = entmax(z, alpha, temperature=alpha)
    factor = (alpha - 1) / alpha
    tau = (z - weights ** (alpha - 1) / factor).where(weights > 0, torch.nan).nanmean(-1, True)
    printed = (factor * (z - tau)).clamp(min=0) ** (1 / (alpha - 1))
    torch.testing.assert_close(printed, weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradient(alpha: float) -> None:
    z = logits(0.5, 6).requires_grad_()
    assert gradcheck(lambda z: entmax(z, alpha, temperature=1.3), (z,))


@pytest.mark.parametrize(
    ("alpha", "temperature"), [(1.0, 1.0), (0.5, 1.0), (1.5, 0.0), (1.5, -1.0)]
)
def test_refuses_what_is_not_entmax(alpha: float, temperature: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        entmax(torch.randn(3), alpha, temperature=temperature)
