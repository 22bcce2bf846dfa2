"""Standardisation of what the router reads, by statistics of the first domain."""

import torch
from torch import Tensor, nn

LEAST_STD = 1e-3
"""Lower bound of a standard deviation, as a share of the mean one: constants stay constants."""


class Standardiser(nn.Module):
    """Subtracts the mean of the first domain and divides by its standard deviation.

    The CLS tokens of two images differ little beside what all CLS tokens of a layer share, so a
    cosine hardly tells them apart. Without the shared part it does. There is a mean for each of
    ``kinds`` of vectors of size ``width``: one per layer, the context, the features. Before `fit`
    vectors stay as they are, and after it the statistics never change.
    """

    mean: Tensor  # [kinds, width]
    std: Tensor

    def __init__(self, kinds: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(kinds, width))
        self.register_buffer("std", torch.ones(kinds, width))

    @torch.no_grad()
    def fit(self, rows: Tensor) -> None:
        """Take the statistics of ``[n, kinds, width]``."""
        std = rows.std(0, correction=0)
        self.mean.copy_(rows.mean(0))
        self.std.copy_(std.clamp(min=LEAST_STD * float(std.mean()) or 1.0))

    def forward(self, kind: int, rows: Tensor) -> Tensor:
        """Standardise ``[B, width]``."""
        return (rows - self.mean[kind]) / self.std[kind]
