"""A closed-form head: ridge regression from sums alone, exact, whatever the order of domains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sodap.preserving.exact import ExactModule


class SecondMoments(ExactModule):
    """The second moments of features and targets: all that least squares needs of the data.

    Sums over two domains are the sums over both, so a head solved from them is the one that
    training on all images at once would give. Kept in float64.
    """

    gram: Tensor  # Σ x xᵀ [D+1, D+1]; the last feature is a constant 1
    cross: Tensor  # Σ x yᵀ [D+1, C], y one-hot
    count: Tensor  # []

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        exact = torch.float64
        self.register_buffer("gram", torch.zeros(width + 1, width + 1, dtype=exact))
        self.register_buffer("cross", torch.zeros(width + 1, classes, dtype=exact))
        self.register_buffer("count", torch.zeros((), dtype=exact))

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Take in features `[B, D]` of classes `labels` `[B]`."""
        x = with_constant(features.double())
        y = nn.functional.one_hot(labels, self.cross.shape[1]).double()
        self.gram += x.T @ x
        self.cross += x.T @ y
        self.count += len(labels)

    @torch.no_grad()
    def solve(self, penalty: float) -> Tensor:
        """W `[D+1, C]` that minimises Σ |xᵀW - y|² + penalty · mean feature energy · |W|².

        The penalty is counted in units of the features' mean square, so that one value means the
        same for every backbone and any number of images; the constant is not held back.
        """
        energy = self.gram.diagonal()[:-1].mean().clamp(min=torch.finfo(self.gram.dtype).tiny)
        held = torch.ones(len(self.gram), dtype=self.gram.dtype, device=self.gram.device)
        held[-1] = 1e-9  # solvable even before any image is seen
        head: Tensor = torch.linalg.solve(
            self.gram + torch.diag(penalty * energy * held), self.cross
        )
        return head

    @torch.no_grad()
    def error(self, weight: Tensor) -> Tensor:
        """Σ |xᵀW - y|² of a head `[D+1, C]` over all that was taken in, from the sums alone."""
        fit = (weight * (self.gram @ weight)).sum() - 2 * (weight * self.cross).sum()
        return fit + self.count  # Σ |y|² is one for each image


def with_constant(features: Tensor) -> Tensor:
    """`[B, D]` -> `[B, D+1]`, the last column 1."""
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)
