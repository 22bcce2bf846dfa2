"""Routing: which prompts an image selects, and how the frozen and the active ones add up."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.prompting.segments import Segments, segmented_entmax

Selection = Literal["entmax", "softmax"]
Combination = Literal["residual", "joint"]


class Partition(NamedTuple):
    """Which rows are routed over together, and what each counts: the same for all layers."""

    segments: Segments
    active: Tensor  # [N] bool, A
    share: Tensor  # [N], what a row counts for: λ_r in A, or 1 where A stands alone; 1 in F
    sets: Tensor  # [], how many distributions there are

    def tensors(self) -> list[Tensor]:
        return [*self.segments.tensors(), self.active, self.share, self.sets]

    def copy(self) -> "Partition":
        """One that stays as it is when the pool grows."""
        slot, order, first, end, leads, active, share, sets = (
            tensor.clone() for tensor in self.tensors()
        )
        segments = Segments(slot, order, first, end, leads, self.segments.spans)
        return Partition(segments, active, share, sets)


class Routing(NamedTuple):
    """The weights of one layer: a distribution over each set, all side by side."""

    weights: Tensor  # [B, N]
    partition: Partition

    def prompt(self, values: Tensor) -> Tensor:
        """``p_F + λ_r p_A``: ``values [N, d] -> [B, d]``."""
        return (self.weights * self.partition.share) @ values.to(self.weights.dtype)

    @property
    def frozen(self) -> Tensor:
        """The weights over F ``[B, N]``, zero elsewhere."""
        return self.weights.masked_fill(self.partition.active, 0.0)

    @property
    def active(self) -> Tensor:
        """The weights over A ``[B, N]``, zero elsewhere."""
        return self.weights.masked_fill(~self.partition.active, 0.0)

    @property
    def joined(self) -> Tensor:
        """One distribution over the whole pool, ``[B, N]``: every set has an equal share."""
        return self.weights / self.partition.sets


@dataclass(frozen=True)
class Router:
    """How logits become weights. ``"joint"`` is one distribution over F and A, without λ_r."""

    selection: Selection = "entmax"
    combination: Combination = "residual"
    alpha: float = 1.5
    temperature: float = 1.5
    residual: float = 0.1

    def partition(self, sets: Tensor) -> Partition:
        """From ``sets [N]``, the set that each row is in, or -1; the highest is A, the rest are F.

        A residual routing selects within each set. All that follows from the sets is computed by
        tensors of shape ``[N]``, so that a recorded step stays right when their number grows.
        """
        active = (sets == sets.max()) & (sets >= 0)
        if self.combination == "joint":
            segments, scale = Segments.of(sets.clamp(max=0)), 1.0
        else:
            segments, scale = Segments.of(sets), self.residual
        # Stage 1 has no F: A is then the whole prompt, not a residual of nothing.
        alone = (segments.members == active).all()
        share = torch.where(active & ~alone, scale, 1.0)
        return Partition(segments, active, share, segments.leads.sum())

    def route(self, query: Tensor, keys: Tensor, partition: Partition) -> Routing:
        """Route ``query [B, d]`` over ``keys [N, d]`` of length one (`unit`) by cosine similarity.

        Always computed in at least float32.
        """
        with torch.autocast(query.device.type, enabled=False):
            logits = unit(query) @ keys.mT  # [B, N]
            alpha = self.alpha if self.selection == "entmax" else 1.0
            weights = segmented_entmax(
                logits, partition.segments, alpha, temperature=self.temperature
            )
        return Routing(weights, partition)


def unit(rows: Tensor) -> Tensor:
    """Rows ``[..., d]`` at length one, in at least float32."""
    return F.normalize(rows.to(torch.promote_types(rows.dtype, torch.float32)), dim=-1, eps=1e-6)
