"""A forward pass seen from inside: what each image selects, and what a part is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class Selection(NamedTuple):
    """Weights that images give to the prompts (or experts) of one layer."""

    weights: Tensor
    """`[B, N]`; 0 means not selected. Weights may be negative and need not sum to 1."""
    active: Tensor
    """`[N]`, which prompts are trained in the current stage."""


class Inspection(NamedTuple):
    """A forward pass, seen from inside."""

    logits: Tensor
    """`[B, C]`"""
    selections: list[Selection]
    """One per routed layer, before any intervention."""
    retrieved: list[Tensor]
    """What each image reads from the memory, `[B, D]` per layer; empty without a memory."""


@dataclass(frozen=True)
class Intervention:
    """Something that is taken away in a forward pass; the default takes nothing away."""

    zero: Literal["none", "active", "all"] = "none"
    """Prompts whose values are set to zero: those of the current stage, or all."""
    fixed: Sequence[Tensor] | None = None
    """Weights `[N]` of each layer that every image gets, instead of its own."""
    one_slot: bool = False
    """Replace all memory slots by their mean."""
    layers: frozenset[int] | None = None
    """Layers to change; None for all."""

    def touches(self, layer: int) -> bool:
        """Whether the pass is changed at this layer."""
        return self.layers is None or layer in self.layers

    def weights(self, layer: int, selection: Selection) -> Tensor:
        """Weights `[B, N]` that a layer uses in place of those that its images select."""
        weights, active = selection
        if not self.touches(layer):
            return weights
        if self.fixed is not None:
            weights = self.fixed[layer].to(weights).expand_as(weights)
        if self.zero == "all":
            return torch.zeros_like(weights)
        if self.zero == "active":
            return torch.where(active, 0.0, weights)
        return weights

    def slots(self, layer: int, slots: Tensor) -> Tensor:
        """Memory slots `[M, D]` that a layer reads."""
        if not self.one_slot or not self.touches(layer):
            return slots
        return slots.mean(0, keepdim=True).expand_as(slots)


NOTHING = Intervention()
"""Takes nothing away."""


class Inspector:
    """Records what the layers of one pass select, and applies an intervention to it."""

    def __init__(self, active: Tensor, intervention: Intervention = NOTHING) -> None:
        self.active = active
        self.intervention = intervention
        self.selections: list[Selection] = []

    def __call__(self, weights: Tensor) -> Tensor:
        """Weights `[B, N]` that the next layer uses, given those that its images select."""
        selection = Selection(weights, self.active)
        self.selections.append(selection)
        return self.intervention.weights(len(self.selections) - 1, selection)


def strongest(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Choose the `count` prompts of largest weight: `[B, N]` -> indices and weights `[B, count]`.

    For methods that choose a few prompts instead of weighting all. A choice of weight 0 stands
    for a prompt that was taken away.
    """
    # A stable sort, so that equal weights go to the lower index on every device.
    ordered = weights.sort(dim=-1, descending=True, stable=True)
    return ordered.indices[:, :count], ordered.values[:, :count]
