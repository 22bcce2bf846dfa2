"""Temperature scaling: the one factor on scores that makes their softmax most likely."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sodap.preserving.exact import ExactModule

LARGEST = 1e4
"""Bounds of the factor: 1/LARGEST to LARGEST."""


class RunningSharpness(ExactModule):
    """Geometric mean of the factors fitted on several domains, weighted by their images."""

    logarithm: Tensor  # []
    images: Tensor  # []

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("logarithm", torch.zeros((), dtype=torch.float64))
        self.register_buffer("images", torch.zeros((), dtype=torch.float64))

    @property
    def value(self) -> Tensor:
        """The mean `[]`; 1 if none was fitted yet."""
        return self.logarithm.exp()

    @torch.no_grad()
    def add(self, sharpness: float, images: int) -> None:
        """Add a factor that was fitted on `images` images to the mean."""
        self.images += images
        self.logarithm += (math.log(sharpness) - self.logarithm) * images / self.images


@torch.no_grad()
def fit_sharpness(scores: Tensor, labels: Tensor) -> float:
    """The factor k for which softmax(k · scores) has the largest likelihood.

    Labels are smoothed by 1/(N+2), as Platt does, so that k is finite even if all are right. The
    loss is convex in k, so its derivative has one zero, which bisection finds.

    Args:
        scores: `[N, C]`; -inf for what is impossible.
        labels: `[N]`.
    """
    scores = scores.double()
    possible = scores.isfinite()
    scores = scores.where(possible, 0.0)
    uniform = possible / possible.sum(1, keepdim=True)
    smoothing = 1 / (len(labels) + 2)
    own = scores.gather(1, labels.unsqueeze(1)).squeeze(1)
    target = (1 - smoothing) * own + smoothing * (uniform * scores).sum(1)

    def too_large(k: float) -> bool:
        expected = ((k * scores).where(possible, -torch.inf).softmax(1) * scores).sum(1)
        return bool((expected - target).mean() > 0)

    low, high = 1 / LARGEST, LARGEST
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if too_large(middle) else (middle, high)
    return math.sqrt(low * high)
