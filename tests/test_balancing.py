"""Uncertainty weighting against its closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sodap.balancing import HIGHEST, LOWEST, UncertaintyWeighting
from sodap.errors import SodapError

NAMES = ("ce", "real", "pseudo")


def losses(*values: float) -> dict[str, Tensor]:
    return {
        name: torch.tensor(v, dtype=torch.float64) for name, v in zip(NAMES, values, strict=True)
    }


def test_it_starts_as_the_plain_sum() -> None:
    balance = UncertaintyWeighting(NAMES)
    assert balance(losses(0.5, 2.0, 4.0)).item() == 6.5
    assert {name: weight.item() for name, weight in balance.weights().items()} == dict.fromkeys(
        NAMES, 1.0
    )


def test_value_and_gradients_have_the_closed_form() -> None:
    balance = UncertaintyWeighting(NAMES).double()
    s = [-1.0, 0.5, 2.0]
    balance.log_variance.data = torch.tensor(s, dtype=torch.float64)
    given = {name: value.requires_grad_() for name, value in losses(0.3, 1.7, 5.0).items()}
    total = balance(given)
    total.backward()
    L = [0.3, 1.7, 5.0]
    terms = [math.exp(-a) * b + a for a, b in zip(s, L, strict=True)]
    assert total.item() == pytest.approx(sum(terms), rel=1e-12)
    assert balance.log_variance.grad is not None
    slopes = [1 - math.exp(-a) * b for a, b in zip(s, L, strict=True)]
    assert balance.log_variance.grad.tolist() == pytest.approx(slopes, rel=1e-12)
    for name, a in zip(NAMES, s, strict=True):
        slope = given[name].grad
        assert slope is not None
        assert slope.item() == pytest.approx(math.exp(-a), rel=1e-12)


def test_the_order_in_which_losses_are_given_does_not_matter() -> None:
    balance = UncertaintyWeighting(NAMES)
    balance.log_variance.data = torch.tensor([0.1, -0.4, 0.9])
    given = losses(1.0, 2.0, 3.0)
    assert balance(given).item() == balance(dict(reversed(given.items()))).item()


def test_constant_losses_lead_to_a_weight_of_one_over_the_loss() -> None:
    balance = UncertaintyWeighting(NAMES).double()
    optimiser = torch.optim.SGD(balance.parameters(), lr=0.3)
    constant = losses(0.2, 1.0, 30.0)
    for _ in range(300):
        optimiser.zero_grad()
        balance(constant).backward()
        optimiser.step()
        balance.project()
    for name, weight in balance.weights().items():
        assert weight.item() == pytest.approx(1 / constant[name].item(), rel=1e-6)
    assert balance.log_variance.tolist() == pytest.approx(
        [math.log(0.2), 0.0, math.log(30)], abs=1e-6
    )


def test_projection_keeps_the_range_and_lets_a_weight_turn_round() -> None:
    balance = UncertaintyWeighting(["tiny", "huge"])
    optimiser = torch.optim.SGD(balance.parameters(), lr=1.0)

    def steps(count: int, tiny: float, huge: float) -> None:
        for _ in range(count):
            optimiser.zero_grad()
            balance({"tiny": torch.tensor(tiny), "huge": torch.tensor(huge)}).backward()
            optimiser.step()
            balance.project()

    steps(20, tiny=0.0, huge=1e4)
    assert balance.log_variance.tolist() == [LOWEST, HIGHEST]
    assert balance.weights()["tiny"].item() == pytest.approx(20.1, rel=1e-2)
    assert balance.weights()["huge"].item() == pytest.approx(0.0025, rel=1e-2)
    steps(1, tiny=1.0, huge=0.0)  # on the bound, the gradient is alive
    assert balance.log_variance[0].item() > LOWEST
    assert balance.log_variance[1].item() < HIGHEST


def test_a_gradient_exists_even_beyond_the_bound() -> None:
    balance = UncertaintyWeighting(["loss"])
    balance.log_variance.data.fill_(HIGHEST + 1)
    balance({"loss": torch.tensor(0.5)}).backward()
    assert balance.log_variance.grad is not None
    assert balance.log_variance.grad.item() == pytest.approx(1.0, abs=1e-2)


def test_reset_and_state() -> None:
    balance, other = UncertaintyWeighting(NAMES), UncertaintyWeighting(NAMES)
    parameter = balance.log_variance
    parameter.data = torch.tensor([1.0, 2.0, 3.0])
    other.load_state_dict(balance.state_dict())
    assert other.log_variance.tolist() == [1.0, 2.0, 3.0]
    balance.reset()
    assert balance.log_variance is parameter  # an optimiser that holds it goes on
    assert parameter.tolist() == [0.0, 0.0, 0.0]
    assert parameter.requires_grad
    assert not any(weight.requires_grad for weight in balance.weights().values())


def test_errors_name_the_losses() -> None:
    balance = UncertaintyWeighting(NAMES)
    given = losses(1.0, 2.0, 3.0)
    with pytest.raises(SodapError, match=r"'norm'"):
        balance({**given, "norm": torch.tensor(1.0)})
    del given["real"]
    with pytest.raises(SodapError, match=r"got \['ce', 'pseudo'\]"):
        balance(given)
    with pytest.raises(SodapError, match="scalar"):
        balance(dict.fromkeys(NAMES, torch.zeros(2)))
    with pytest.raises(SodapError, match="distinct"):
        UncertaintyWeighting(["ce", "ce"])
    with pytest.raises(SodapError, match="distinct"):
        UncertaintyWeighting([])
