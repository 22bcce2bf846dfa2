"""Ridge regression from sums over the data, independent of the order of domains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sodap.preserving.exact import ExactModule

ROWS = 4096
"""Images that are added at a time."""

PENALTIES = tuple(10.0**exponent for exponent in range(-6, 3))
"""Values of the ridge penalty to choose from."""


class SecondMoments(ExactModule):
    """Second moments of features and one-hot labels, in float64: all that least squares needs.

    Sums over two domains are the sums over both together, so a head solved from them is the one
    that all images at once would give.
    """

    gram: Tensor  # Σ x xᵀ [D+1, D+1]; the last feature is a constant 1
    cross: Tensor  # Σ x yᵀ [D+1, C], y one-hot
    count: Tensor  # []

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("gram", torch.zeros(width + 1, width + 1, dtype=torch.float64))
        self.register_buffer("cross", torch.zeros(width + 1, classes, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features `[B, D]` with labels `[B]`."""
        # In parts, because the copy in float64 is larger than the features.
        parts = zip(torch.split(features, ROWS), torch.split(labels, ROWS), strict=True)
        for part, own in parts:
            x = with_constant(part.double())
            y = nn.functional.one_hot(own, self.cross.shape[1]).double()
            self.gram += x.T @ x
            self.cross += x.T @ y
        self.count += len(labels)

    def merge(self, other: SecondMoments) -> None:
        """Add the sums of `other`."""
        self.gram += other.gram
        self.cross += other.cross
        self.count += other.count

    @torch.no_grad()
    def solve(self, penalty: float) -> Tensor:
        """W `[D+1, C]` that minimises Σ |xᵀW - y|² + penalty · mean feature energy · |W|².

        The penalty is in units of the features' mean square, so that one value means the same for
        every backbone and number of images. The constant feature is hardly penalised.
        """
        energy = self.gram.diagonal()[:-1].mean().clamp(min=torch.finfo(self.gram.dtype).tiny)
        scale = torch.ones(len(self.gram), dtype=self.gram.dtype, device=self.gram.device)
        scale[-1] = 1e-9  # not 0, so that there is a solution before any image is seen
        head: Tensor = torch.linalg.solve(
            self.gram + torch.diag(penalty * energy * scale), self.cross
        )
        return head

    @torch.no_grad()
    def error(self, weight: Tensor) -> Tensor:
        """Σ |xᵀW - y|² of a head `[D+1, C]` over all images added so far."""
        fit = (weight * (self.gram @ weight)).sum() - 2 * (weight * self.cross).sum()
        return fit + self.count  # Σ |y|² is 1 per image


def solve_ridge(train: SecondMoments, val: SecondMoments) -> tuple[Tensor, float]:
    """Head `[D+1, C]` of `train` and its penalty, chosen by the squared error on `val`."""
    heads = [(train.solve(penalty), penalty) for penalty in PENALTIES]
    return min(heads, key=lambda head: float(val.error(head[0])))


def with_constant(features: Tensor) -> Tensor:
    """Append a constant feature: `[B, D] -> [B, D+1]`."""
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)
