"""Optimal transport between the classes of two domains, by Sinkhorn's algorithm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ENTROPY = 0.02
"""Strength of the entropic regularisation, in units of the mean cost."""

ROUNDS = 100


@torch.no_grad()
def transport_plan(cost: Tensor) -> Tensor:
    """How each row's mass is spread over the columns: `[C, C]` costs to shares, rows sum to 1.

    Every row gives and every column takes the same mass. Computed in logarithms, because costs may
    be large.
    """
    size = len(cost)
    cost = cost.double()
    mean = cost.mean()
    scores = -cost / (ENTROPY * torch.where(mean > 0, mean, 1.0))
    for _ in range(ROUNDS):
        scores = scores - scores.logsumexp(0, keepdim=True) + math.log(1 / size)
        scores = scores - scores.logsumexp(1, keepdim=True) + math.log(1 / size)
    return (size * scores.exp()).to(cost.dtype).float()
