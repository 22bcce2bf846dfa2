"""Routing: which prompts an image selects, and how the frozen and the active ones add up."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.prompting.entmax import entmax

Selection = Literal["entmax", "softmax"]
Combination = Literal["residual", "joint"]


class Routing(NamedTuple):
    """The weights of one layer: over F and over A, each zero outside its own set."""

    frozen: Tensor  # [B, N]
    active: Tensor  # [B, N]
    scale: Tensor  # [], what A counts for beside F: λ_r, or 1 where A stands alone

    def prompt(self, values: Tensor) -> Tensor:
        """``p_F + λ_r p_A``: ``values [N, d] -> [B, d]``."""
        return (self.frozen + self.scale * self.active) @ values.to(self.frozen.dtype)

    @property
    def joined(self) -> Tensor:
        """One distribution over the whole pool, ``[B, N]``: every set has an equal share."""
        both = self.frozen + self.active
        # The total is the number of sets, whatever the logits: no gradient belongs to it.
        sets = both.sum(-1, keepdim=True).detach()
        return both / sets.clamp(min=torch.finfo(both.dtype).tiny)


@dataclass(frozen=True)
class Router:
    """How logits become weights. ``"joint"`` is one distribution over F and A, without λ_r."""

    selection: Selection = "entmax"
    combination: Combination = "residual"
    alpha: float = 1.5
    temperature: float = 1.5
    residual: float = 0.1

    def route(self, query: Tensor, keys: Tensor, groups: Tensor) -> Routing:
        """Route ``query [B, d]`` over ``keys [N, d]`` by cosine similarity.

        ``groups [G, N]`` are disjoint masks. A residual routing selects within each of them; the
        last is A, those before are F. Always computed in at least float32.
        """
        dtype = torch.promote_types(query.dtype, torch.float32)
        with torch.autocast(query.device.type, enabled=False):
            logits = _unit(query.to(dtype)) @ _unit(keys.to(dtype)).mT  # [B, N]
            if self.combination == "joint":
                return self._jointly(logits, groups)
            return self._residually(logits, groups)

    def _residually(self, logits: Tensor, groups: Tensor) -> Routing:
        weights = self._select(logits.unsqueeze(1), groups)  # [B, G, N]
        # Stage 1 has no F: A is then the whole prompt, not a residual of nothing.
        scale = torch.where(groups[:-1].any(), self.residual, 1.0).to(weights.dtype)
        return Routing(weights[:, :-1].sum(1), weights[:, -1], scale)

    def _jointly(self, logits: Tensor, groups: Tensor) -> Routing:
        weights = self._select(logits, groups.any(0))  # [B, N]
        active = groups[-1]
        return Routing(weights * ~active, weights * active, weights.new_ones(()))

    def _select(self, logits: Tensor, mask: Tensor) -> Tensor:
        if self.selection == "entmax":
            return entmax(logits, self.alpha, temperature=self.temperature, mask=mask)
        scores = torch.where(mask, logits / self.temperature, torch.finfo(logits.dtype).min)
        return torch.where(mask, scores.softmax(dim=-1), 0.0)


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=-1, eps=1e-6)
