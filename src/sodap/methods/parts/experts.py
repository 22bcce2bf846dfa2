"""Experts beside the MLP of a ViT block: small adapters, and the routers that choose among them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sodap.freezing import freeze_rows, frozen_or_trained, resize_on_load


class Gates(NamedTuple):
    """What each image of a batch has chosen in one block: k experts, whose weights sum to 1."""

    expert: Tensor  # [B, k], numbers of experts, the heaviest first
    weight: Tensor  # [B, k]

    def picks(self, experts: int) -> Tensor:
        """The choice as a mask `[B, k, E]`."""
        return self.expert.unsqueeze(-1) == torch.arange(experts, device=self.expert.device)


def top_gates(logits: Tensor, count: int) -> Gates:
    """Logits `[B, E]` -> the `count` largest, and a softmax over them alone."""
    # A new router has equal logits: a stable sort gives ties to the lower number on any device.
    ordered = logits.sort(dim=-1, descending=True, stable=True)
    return Gates(ordered.indices[:, :count], ordered.values[:, :count].softmax(-1))


class DomainRouter(nn.Module):
    """Noisy linear routing from one token to E experts, anew for each domain.

    The router of the current domain is a parameter. Those of earlier domains are buffers, so that
    neither decay nor momentum can move them.
    """

    past: Tensor  # [T-1, 2, D, E]

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        # W_g and W_noise. Zero: no expert is preferred at the start, and noise alone explores.
        self.weight = nn.Parameter(torch.zeros(2, width, experts))
        self.register_buffer("past", torch.zeros(0, 2, width, experts))
        resize_on_load(self, "past")

    @torch.no_grad()
    def start_domain(self) -> None:
        """Keep the current router for its domain, and begin a new one."""
        self.past = torch.cat([self.past, self.weight.detach()[None]])
        self.weight.zero_()

    def forward(
        self, token: Tensor, domain: Tensor | None = None, noise: torch.Generator | None = None
    ) -> Tensor:
        """Token `[B, D]` -> logits `[B, E]`, in full precision.

        `domain` `[B]` names a router for each image, from 0; None is the current one for all.
        With `noise`, the logits scatter by ε (softplus(token W_noise) + 0.01), ε ~ N(0, 1).
        """
        with torch.autocast(token.device.type, enabled=False):
            token = token.to(self.weight.dtype)
            if domain is None:
                logits, spread = torch.einsum("bd,sde->sbe", token, self.weight).unbind()
            else:
                # All routers on one token cost less than a router's weights for every image.
                routers = torch.cat([self.past, self.weight[None]])
                everywhere = torch.einsum("bd,tsde->tsbe", token, routers)
                own = domain.view(1, 1, -1, 1).expand(1, *everywhere.shape[1:])
                logits, spread = everywhere.gather(0, own)[0].unbind()
            if noise is None:
                return logits
            drawn = torch.randn(
                logits.shape, generator=noise, device=logits.device, dtype=logits.dtype
            )
            return logits + drawn * (F.softplus(spread) + 0.01)


class ExpertBlock(nn.Module):
    """E experts of one block, each `scale · (relu(x A + a) B + b)` with a narrow middle.

    Experts that were frozen are read from buffers, the others from parameters: an optimiser with
    decay or momentum moves the parameters of a frozen expert, but nobody reads those again.
    """

    frozen: Tensor  # [E]
    frozen_down: Tensor  # [E, H, D]
    frozen_down_bias: Tensor  # [E, H]
    frozen_up: Tensor  # [E, H, D]
    frozen_up_bias: Tensor  # [E, D]

    def __init__(
        self,
        width: int,
        *,
        experts: int,
        chosen: int,
        bottleneck: int,
        scale: float,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.experts, self.chosen, self.bottleneck = experts, chosen, bottleneck
        self.scale, self.dropout = scale, dropout
        self.router = DomainRouter(width, experts)
        drawn = torch.rand(experts, bottleneck, width, generator=generator)
        self.down = nn.Parameter((2 * drawn - 1) / width**0.5)  # as a linear layer starts
        self.down_bias = nn.Parameter(torch.zeros(experts, bottleneck))
        # Zero, so that the first forward pass is the untouched backbone's.
        self.up = nn.Parameter(torch.zeros(experts, bottleneck, width))
        self.up_bias = nn.Parameter(torch.zeros(experts, width))
        self.register_buffer("frozen", torch.zeros(experts, dtype=torch.bool))
        for name in ("down", "down_bias", "up", "up_bias"):
            self.register_buffer(f"frozen_{name}", torch.zeros_like(getattr(self, name).detach()))

    def route(
        self, token: Tensor, domain: Tensor | None = None, noise: torch.Generator | None = None
    ) -> Gates:
        """Which experts each image `[B, D]` wants; arguments as those of the router."""
        return top_gates(self.router(token, domain, noise), self.chosen)

    def forward(
        self, tokens: Tensor, gates: Gates, dropout: torch.Generator | None = None
    ) -> Tensor:
        """Tokens `[B, N, D]` -> Σ gate · expert(tokens) `[B, N, D]`.

        The k experts of an image are one adapter with a k times wider middle, so that each image
        needs two products. Picking k of E weights costs 2kEHD multiplications an image; it saves
        the 2(E-k)NHD of experts that would be computed and then weighed with zero. N is far larger
        than k: for k=2, E=22 and 197 tokens the picking is a tenth of the rest, and all of it a
        tenth of running every expert. Only where all are chosen is there nothing to pick.
        """
        down, down_bias = self._read("down"), self._read("down_bias")
        up, up_bias = self._read("up"), self._read("up_bias")
        pick = gates.picks(self.experts).to(down.dtype)  # [B, k, E]
        # Gates stay in full precision: autocast would round them in a product of matrices.
        share = (gates.weight.unsqueeze(-1) * pick).sum(1)  # [B, E]
        with torch.autocast(tokens.device.type, enabled=False):
            shift = (share @ up_bias.to(share.dtype)).unsqueeze(1)
        if self.chosen == self.experts:
            down, up = down.flatten(0, 1), up.flatten(0, 1)  # [EH, D], one for the whole batch
            down_bias = down_bias.flatten()
        else:
            # A product with the mask, unlike an index, adds gradients in the same order every time.
            down, up = (
                torch.einsum("bke,ehd->bkhd", pick, weight).flatten(1, 2)  # [B, kH, D]
                for weight in (down, up)
            )
            down_bias = (pick @ down_bias).flatten(1, 2).unsqueeze(1)
            share = gates.weight
        hidden = (tokens @ down.mT + down_bias).relu()
        if dropout is not None and self.dropout:
            kept = torch.empty_like(hidden).bernoulli_(1 - self.dropout, generator=dropout)
            hidden = hidden * kept / (1 - self.dropout)
        weighed = hidden * share.repeat_interleave(self.bottleneck, 1).unsqueeze(1)
        return (self.scale * (weighed @ up + shift)).to(tokens.dtype)

    def _read(self, name: str) -> Tensor:
        """Frozen experts from their buffer, the others from the parameter; `[E, ...]`."""
        return frozen_or_trained(self.frozen, getattr(self, f"frozen_{name}"), getattr(self, name))

    @torch.no_grad()
    def freeze(self, experts: Tensor) -> None:
        """Never change these experts `[k]` again; some of them may be frozen already."""
        fresh = torch.zeros_like(self.frozen)
        fresh[experts] = True
        fresh &= ~self.frozen
        for name in ("down", "down_bias", "up", "up_bias"):
            freeze_rows(fresh, getattr(self, f"frozen_{name}"), getattr(self, name))
        self.frozen |= fresh

    def trainable_count(self) -> int:
        """The current router, and the experts that are not frozen."""
        width = self.down.shape[-1]
        expert = 2 * width * self.bottleneck + self.bottleneck + width
        return self.router.weight.numel() + int((~self.frozen).sum()) * expert
