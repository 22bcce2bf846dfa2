import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from sodap.prompting import diversity_loss, norm_loss


def test_diversity_is_the_printed_double_sum() -> None:
    values = torch.randn(7, 5, dtype=torch.float64)
    usage = torch.rand(3, 7, dtype=torch.float64)
    members = torch.tensor([1, 1, 0, 1, 1, 0, 1], dtype=torch.bool)
    v, layers = values.numpy(), []
    for u in usage.numpy():
        numerator = denominator = 0.0
        for i in np.flatnonzero(members):
            for j in np.flatnonzero(members):
                if i != j:
                    cosine = v[i] @ v[j] / np.linalg.norm(v[i]) / np.linalg.norm(v[j])
                    numerator += u[i] * u[j] * abs(cosine)
                    denominator += u[i] * u[j]
        layers.append(numerator / denominator)
    loss = diversity_loss(values, usage, members)
    assert loss.item() == pytest.approx(np.mean(layers))
    assert diversity_loss(values, usage[0], members).item() == pytest.approx(layers[0])
    per_layer_pools = diversity_loss(values.expand(3, 7, 5), usage, members)
    assert per_layer_pools.item() == pytest.approx(np.mean(layers))


def test_diversity_gradients() -> None:
    values = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    usage = torch.rand(2, 5, dtype=torch.float64, requires_grad=True)
    members = torch.tensor([True, True, True, False, True])
    assert gradcheck(lambda v, u: diversity_loss(v, u, members), (values, usage))


@pytest.mark.parametrize("case", ["one member", "no member", "one-hot", "unused", "zero values"])
def test_diversity_of_nothing_is_zero(case: str) -> None:
    values, usage = torch.randn(6, 4), torch.full((6,), 1 / 6)
    members = torch.ones(6, dtype=torch.bool)
    if case == "one member":
        members = torch.arange(6) == 2
    elif case == "no member":
        members = torch.zeros(6, dtype=torch.bool)
    elif case == "one-hot":
        usage = (torch.arange(6) == 2).float()
    elif case == "unused":
        usage = torch.zeros(6)
    else:
        values = torch.zeros(6, 4)
    values.requires_grad_()
    usage.requires_grad_()
    loss = diversity_loss(values, usage, members)
    torch.autograd.backward(loss)
    assert loss.item() == 0
    assert values.grad is not None
    assert usage.grad is not None
    assert (values.grad == 0).all()
    assert (usage.grad == 0).all()


def test_diversity_bounds() -> None:
    members = torch.ones(4, dtype=torch.bool)
    usage = torch.full((4,), 0.25)
    assert diversity_loss(torch.eye(4), usage, members).item() == 0
    assert diversity_loss(torch.ones(4, 3), usage, members).item() == pytest.approx(1)


def test_norm_is_the_mean_length_of_members() -> None:
    values = torch.tensor([[3.0, 4.0], [0.0, 0.0], [60.0, 80.0]], requires_grad=True)
    loss = norm_loss(values, torch.tensor([True, True, False]))
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(2.5)
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[0.3, 0.4], [0.0, 0.0], [0.0, 0.0]]))
    assert norm_loss(values, torch.zeros(3, dtype=torch.bool)).item() == 0
