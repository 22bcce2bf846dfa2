"""Distillation of a frozen teacher head into the student head (eqs. real_kd and pseudo_kd)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation_loss(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 2.0
) -> Tensor:
    """KL(softmax(z_t / T) || softmax(z_s / T)) · T² of logits `[B, C]`, averaged over the batch.

    T² undoes the 1/T² by which the temperature shrinks the gradients. The teacher is a constant.
    """
    # The difference of two nearly equal distributions drowns in half precision.
    precise = torch.promote_types(student_logits.dtype, torch.float32)
    student = F.log_softmax(student_logits.to(precise) / temperature, dim=-1)
    teacher = F.log_softmax(teacher_logits.detach().to(precise) / temperature, dim=-1)
    divergence = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return divergence * temperature**2
