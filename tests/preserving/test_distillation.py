"""The distillation loss against the definition of the divergence."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from sodap.preserving import distillation_loss


def by_definition(student: list[list[float]], teacher: list[list[float]], T: float) -> float:
    def softmax(row: list[float]) -> list[float]:
        powers = [math.exp(z / T) for z in row]
        return [power / sum(powers) for power in powers]

    total = 0.0
    for s_row, t_row in zip(student, teacher, strict=True):
        s, t = softmax(s_row), softmax(t_row)
        total += sum(t_c * math.log(t_c / s_c) for s_c, t_c in zip(s, t, strict=True))
    return total / len(student) * T**2


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_it_is_the_divergence_of_the_definition(temperature: float) -> None:
    student, teacher = torch.randn(
        2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    found = distillation_loss(student, teacher, temperature)
    assert found.item() == pytest.approx(
        by_definition(student.tolist(), teacher.tolist(), temperature), rel=1e-12
    )
    oracle = F.kl_div(
        torch.log(torch.softmax(student / temperature, dim=1)),
        torch.softmax(teacher / temperature, dim=1),
        reduction="batchmean",
    )
    torch.testing.assert_close(found, oracle * temperature**2)


def test_it_is_zero_for_equal_heads_and_positive_otherwise() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5], [3.0, 3.0, -100.0]])
    assert distillation_loss(logits, logits).item() == 0
    assert distillation_loss(logits.flip(1), logits).item() > 0


def test_only_the_student_learns() -> None:
    student, teacher = torch.randn(
        2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    student, teacher = student.requires_grad_(), teacher.requires_grad_()
    distillation_loss(student, teacher, temperature=2.0).backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None
    # d/dz_s of T² · mean KL is T (softmax(z_s / T) - softmax(z_t / T)) / B.
    gap = torch.softmax(student / 2, dim=1) - torch.softmax(teacher / 2, dim=1)
    torch.testing.assert_close(student.grad, 2 * gap.detach() / 6)


def test_half_precision_is_computed_in_float32() -> None:
    student = torch.tensor([[10.0, 0.0, -10.0]], dtype=torch.bfloat16)
    teacher = torch.tensor([[10.0, 0.0625, -10.0]], dtype=torch.bfloat16)
    loss = distillation_loss(student, teacher)
    assert loss.dtype == torch.float32
    exact = distillation_loss(student.double(), teacher.double())
    torch.testing.assert_close(loss.double(), exact, rtol=1e-2, atol=1e-7)
