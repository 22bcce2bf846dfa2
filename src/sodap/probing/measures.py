"""The measures of a probe, as functions of weights, slots and retrieved vectors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


def variety(weights: Tensor) -> Tensor:
    """Mean distance between the routings of two images, per layer: `[n, L, N] -> [L]`.

    The distance of two distributions is their total variation, half the sum of the absolute
    differences: 0 if two images give every prompt the same weight, 1 if they share no prompt.
    Weights that do not sum to 1 are divided by their mean sum. NaN for fewer than two images.
    """
    count = len(weights)
    if count < 2:
        return weights.new_full(weights.shape[1:2], torch.nan, dtype=torch.float64)
    ordered = weights.double().sort(0).values
    # Sorted, the k-th smallest of n values is the larger one in k pairs, the smaller in n - 1 - k.
    times = 2.0 * torch.arange(count, device=weights.device) - (count - 1)
    differences = torch.einsum("n,nld->l", times.to(ordered), ordered)
    sums = (count - 1) * ordered.abs().sum((0, 2))
    return differences / sums.clamp(min=torch.finfo(sums.dtype).tiny)


def group_means(rows: Tensor, groups: Tensor) -> Tensor:
    """Mean of the rows of each group that occurs: `[n, ...], [n] -> [groups, ...]`."""
    return torch.stack([rows[groups == group].mean(0) for group in sorted(set(groups.tolist()))])


def support(weights: Tensor) -> Tensor:
    """Mean number of prompts with a weight other than 0, per layer: `[n, L, N] -> [L]`."""
    return (weights != 0).sum(-1).double().mean(0)


def spread(vectors: Tensor) -> Tensor:
    """How far vectors are from their mean, relative to their length: `[n, L, D] -> [L]`.

    0 if all images get the same vector, near 1 if their mean is small beside them.
    """
    vectors = vectors.double()
    distance = (vectors - vectors.mean(0)).square().sum(-1).mean(0)
    length = vectors.square().sum(-1).mean(0)
    return (distance / length.clamp(min=torch.finfo(length.dtype).tiny)).sqrt()


class Cosines(NamedTuple):
    """Cosines between two different rows."""

    mean: float
    least: float


def cosines(rows: Tensor) -> Cosines | None:
    """Cosines between the rows of `[M, D]`; None for a single row."""
    if len(rows) < 2:
        return None
    unit = F.normalize(rows.double(), dim=-1)
    first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    found = (unit @ unit.mT)[first, second]
    return Cosines(float(found.mean()), float(found.min()))
