"""Distillation of a frozen teacher head into the student head, equations (12) and (14)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation_loss(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 2.0
) -> Tensor:
    """Mean over the batch of KL(softmax(z_t / T) || softmax(z_s / T)) · T²; logits are `[B, C]`.

    T² compensates the 1/T² by which the temperature scales the gradients. No gradient flows to the
    teacher.
    """
    # Half precision cannot resolve the difference of two nearly equal distributions.
    precise = torch.promote_types(student_logits.dtype, torch.float32)
    student = F.log_softmax(student_logits.to(precise) / temperature, dim=-1)
    teacher = F.log_softmax(teacher_logits.detach().to(precise) / temperature, dim=-1)
    divergence = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return divergence * temperature**2
