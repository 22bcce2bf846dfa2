"""Training of a classifier on features, at the end of a stage and without a pass over images."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 256
LR = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
"""SGD as in the releases of SLCA and DUCT; here the batch size is the same for both."""


def fit_head(
    parameters: list[nn.Parameter],
    logits: Callable[[Tensor], Tensor],
    draw: Callable[[int], tuple[Tensor, Tensor]],
    steps: int,
) -> None:
    """Minimise the cross-entropy of `logits(features)` with SGD and a cosine schedule.

    Args:
        draw: returns the given number of features `[B, D]` with labels `[B]`.
    """
    device = parameters[0].device.type
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        optimizer = torch.optim.SGD(parameters, LR, MOMENTUM, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            features, labels = draw(BATCH)
            optimizer.zero_grad()
            loss = F.cross_entropy(logits(features), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        optimizer.zero_grad()
