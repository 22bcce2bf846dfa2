"""Adapters beside the MLP of a ViT block (experts), and the routers that choose among them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sodap.freezing import freeze_rows, frozen_or_trained, resize_on_load


class Gates(NamedTuple):
    """The k experts that each image chooses in a block, with weights that sum to 1."""

    expert: Tensor  # [B, k], indices of experts, largest weight first
    weight: Tensor  # [B, k]

    def one_hot(self, experts: int) -> Tensor:
        """The choice as a mask `[B, k, E]`."""
        return self.expert.unsqueeze(-1) == torch.arange(experts, device=self.expert.device)

    def dense(self, experts: int) -> Tensor:
        """Weights of all experts, 0 for those that are not chosen: `[B, E]`."""
        return self.weight.new_zeros(len(self.weight), experts).scatter(1, self.expert, self.weight)


def top_gates(logits: Tensor, count: int) -> Gates:
    """The `count` largest logits of `[B, E]`, and a softmax over these alone."""
    # A new router has equal logits: a stable sort gives ties to the lower index on any device.
    ordered = logits.sort(dim=-1, descending=True, stable=True)
    return Gates(ordered.indices[:, :count], ordered.values[:, :count].softmax(-1))


class DomainRouter(nn.Module):
    """Noisy linear routing from a token to E experts, with one router per domain.

    The current router is a parameter; those of earlier domains are frozen in a buffer.
    """

    past: Tensor  # [T-1, 2, D, E]

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        # W_g and W_noise. Zero, so that at the start only the noise chooses.
        self.weight = nn.Parameter(torch.zeros(2, width, experts))
        self.register_buffer("past", torch.zeros(0, 2, width, experts))
        resize_on_load(self, "past")

    @torch.no_grad()
    def start_domain(self) -> None:
        """Freeze the current router and start a new one."""
        self.past = torch.cat([self.past, self.weight.detach()[None]])
        self.weight.zero_()

    def forward(
        self, token: Tensor, domain: Tensor | None = None, noise: torch.Generator | None = None
    ) -> Tensor:
        """Routing logits in full precision: `[B, D] -> [B, E]`.

        `domain` `[B]` is the router of each image, counted from 0; None means the current one. With
        `noise`, ε (softplus(token W_noise) + 0.01) with ε ~ N(0, 1) is added to the logits.
        """
        with torch.autocast(token.device.type, enabled=False):
            token = token.to(self.weight.dtype)
            if domain is None:
                logits, spread = torch.einsum("bd,sde->sbe", token, self.weight).unbind()
            else:
                # Applying all routers costs less than gathering the weights of one per image.
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
    """E experts of one block, each `scale · (relu(x A + a) B + b)` with a narrow hidden layer.

    Frozen experts are read from buffers. Their parameters may still be moved by weight decay or
    momentum but are no longer used.
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
        top_k: int,
        bottleneck: int,
        scale: float,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.experts, self.top_k, self.bottleneck = experts, top_k, bottleneck
        self.scale, self.dropout = scale, dropout
        self.router = DomainRouter(width, experts)
        drawn = torch.rand(experts, bottleneck, width, generator=generator)
        self.down = nn.Parameter((2 * drawn - 1) / width**0.5)  # as `nn.Linear` starts
        self.down_bias = nn.Parameter(torch.zeros(experts, bottleneck))
        # Zero, so that the first forward pass is that of the plain backbone.
        self.up = nn.Parameter(torch.zeros(experts, bottleneck, width))
        self.up_bias = nn.Parameter(torch.zeros(experts, width))
        self.register_buffer("frozen", torch.zeros(experts, dtype=torch.bool))
        for name in ("down", "down_bias", "up", "up_bias"):
            self.register_buffer(f"frozen_{name}", torch.zeros_like(getattr(self, name).detach()))

    def route(
        self, token: Tensor, domain: Tensor | None = None, noise: torch.Generator | None = None
    ) -> Gates:
        """Choose experts by a token `[B, D]` of each image; arguments as for `DomainRouter`."""
        return top_gates(self.router(token, domain, noise), self.top_k)

    def forward(
        self, tokens: Tensor, gates: Gates, dropout: torch.Generator | None = None
    ) -> Tensor:
        """Σ gate · expert(tokens): `[B, N, D] -> [B, N, D]`.

        The k experts of an image are computed as one adapter with a k times wider hidden layer.
        Gathering the weights of k out of E costs 2kEHD multiplications per image and saves the
        2(E-k)NHD of experts with weight zero. For k=2, E=22 and 197 tokens, gathering takes a
        tenth of the rest, and both together a tenth of running every expert.
        """
        down, down_bias = self.expert_weights("down"), self.expert_weights("down_bias")
        up, up_bias = self.expert_weights("up"), self.expert_weights("up_bias")
        chosen = gates.one_hot(self.experts).to(down.dtype)  # [B, k, E]
        # Full precision: autocast would round the gates in a matrix product.
        gate = (gates.weight.unsqueeze(-1) * chosen).sum(1)  # [B, E]
        with torch.autocast(tokens.device.type, enabled=False):
            bias = (gate @ up_bias.to(gate.dtype)).unsqueeze(1)
        if self.top_k == self.experts:  # all experts: one adapter for the whole batch
            down, up = down.flatten(0, 1), up.flatten(0, 1)  # [EH, D]
            down_bias = down_bias.flatten()
        else:
            # A product with the mask, unlike an index, adds gradients in the same order every time.
            down, up = (
                torch.einsum("bke,ehd->bkhd", chosen, weight).flatten(1, 2)  # [B, kH, D]
                for weight in (down, up)
            )
            down_bias = (chosen @ down_bias).flatten(1, 2).unsqueeze(1)
            gate = gates.weight
        hidden = (tokens @ down.mT + down_bias).relu()
        if dropout is not None and self.dropout:
            kept = torch.empty_like(hidden).bernoulli_(1 - self.dropout, generator=dropout)
            hidden = hidden * kept / (1 - self.dropout)
        weighted = hidden * gate.repeat_interleave(self.bottleneck, 1).unsqueeze(1)
        return (self.scale * (weighted @ up + bias)).to(tokens.dtype)

    def expert_weights(self, name: str) -> Tensor:
        """Weights `[E, ...]`: of frozen experts the buffer, of others the parameter."""
        return frozen_or_trained(self.frozen, getattr(self, f"frozen_{name}"), getattr(self, name))

    @torch.no_grad()
    def freeze(self, experts: Tensor) -> None:
        """Freeze the experts with these indices `[k]`; some may be frozen already."""
        fresh = torch.zeros_like(self.frozen)
        fresh[experts] = True
        fresh &= ~self.frozen
        for name in ("down", "down_bias", "up", "up_bias"):
            freeze_rows(fresh, getattr(self, f"frozen_{name}"), getattr(self, name))
        self.frozen |= fresh

    def trainable_count(self) -> int:
        """Number of trainable weights: the current router and the experts that are not frozen."""
        width = self.down.shape[-1]
        expert = 2 * width * self.bottleneck + self.bottleneck + width
        return self.router.weight.numel() + int((~self.frozen).sum()) * expert
