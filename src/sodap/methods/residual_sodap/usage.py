"""Prompt usage of a domain, as the drift score reads it (section 3.3.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sodap.drift import DriftSettings
from sodap.prompting import Routing


class GroupMeans:
    """Means over consecutive groups of `size` images, independent of how they are batched.

    With a `size` of 0 every batch is a group. Images that do not fill the last group are left
    out, unless there are no others: their mean would be noisier than the rest.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.means: list[Tensor] = []
        self.rest: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Add the rows `[B, ...]` of a batch, one per image."""
        if self.rest is not None:
            rows = torch.cat([self.rest, rows])
        size = self.size or len(rows)
        whole = len(rows) // size * size
        self.means += [rows[at : at + size].mean(0) for at in range(0, whole, size)]
        self.rest = rows[whole:]

    def stacked(self) -> Tensor:
        """Return the means of all groups, `[groups, ...]`."""
        if not self.means:
            if self.rest is None:
                raise ValueError("no image was added")
            return self.rest.mean(0, keepdim=True)
        return torch.stack(self.means)


def usage_of(routings: list[Routing]) -> Tensor:
    """Stack the weights of L layers: within each set of prompts, and joined, `[B, 2, L, N]`.

    From stage 2 on an image has several distributions (over F and over A, or with `merge=rescale`
    one over the prompts of each stage). Its usage is their mean.
    """
    joined = torch.stack([routing.joined for routing in routings], 1)
    within = torch.stack([routing.weights for routing in routings], 1)
    return torch.stack([joined, within], 1)


def usage_threshold(sizes: Sequence[int], settings: DriftSettings) -> Tensor:
    """Mean weight within its own set above which a prompt counts as used, `[N]`.

    `sizes` are the numbers of prompts of the sets, each with weights that sum to 1. A relative
    threshold is a multiple of the mean weight of the set.
    """
    counts = torch.tensor(sizes)
    unit = 1 / counts if settings.relative_threshold else torch.ones(len(counts))
    return (settings.usage_threshold * unit).repeat_interleave(counts)
