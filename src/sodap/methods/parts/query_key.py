"""Prompts that are found by their keys: what L2P and DualPrompt have in common.

The frozen backbone first looks at an image without any prompt. Its feature is the query. The
prompts whose keys point most nearly the same way take part in a second pass, and a loss of its own
pulls these keys towards the query.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.methods.base import LinearHead, Method, MethodConfig
from sodap.randomness import Randomness


class QueryKeyConfig(MethodConfig):
    """What both methods let one choose."""

    pool_size: int = Field(10, ge=1, le=100_000, description="prompts in the pool")
    top_k: int = Field(5, ge=1, validate_default=True, description="prompts that an image chooses")
    pull: float = Field(
        1.0, ge=0, description="weight of the distance between a query and the keys of its prompts"
    )
    faithful: bool = Field(
        False,
        description="as published: the batch votes on its prompts, start values from U(-1, 1), "
        "gradients clipped at norm 1, keys that were never trained can be chosen",
    )

    @field_validator("top_k")
    @classmethod
    def _fits_the_pool(cls, top_k: int, others: ValidationInfo) -> int:
        if top_k > others.data.get("pool_size", top_k):
            raise ValueError(f"a pool of {others.data['pool_size']} has no {top_k} to choose from")
        return top_k


class QueryKeyMethod(Method):
    """A query from the frozen backbone, a linear head, and the habits of the published code."""

    family = "prompt"
    stores = "nothing"
    config: QueryKeyConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))

    def query(self, images: Tensor) -> Tensor:
        """`[B, D]`: the CLS feature of the backbone as it is, without prompts or gradients."""
        with torch.no_grad():
            feature: Tensor = self.backbone(images)
            return feature.float()

    def drawn(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Start values of prompts or keys.

        Normal with a deviation of 0.02, as a ViT's own tokens start. The published code draws
        from U(-1, 1): a small learning rate then never leaves the noise of the start.
        """
        if self.config.faithful:
            return torch.rand(shape, generator=generator) * 2 - 1
        return torch.randn(shape, generator=generator) * 0.02

    def before_step(self) -> None:
        if self.config.faithful:
            nn.utils.clip_grad_norm_([p for p in self.parameters() if p.requires_grad], 1.0)

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Decay on the head's matrix alone: a prompt that no image needs now must not fade."""
        free = [p for p in self.parameters() if p.requires_grad and p is not self.head.weight]
        return [
            {"params": [self.head.weight], "lr": lr, "weight_decay": weight_decay},
            {"params": free, "lr": lr, "weight_decay": 0.0},
        ]


def nearest(likeness: Tensor, count: int, *, vote: bool) -> Tensor:
    """The `count` best columns of `likeness [B, N]` for each row, `[B, count]`.

    With `vote`, every row gets the columns that most rows of the batch have chosen.
    """
    chosen = likeness.topk(count, dim=-1).indices
    if not vote:
        return chosen
    votes = torch.zeros_like(likeness).scatter_(1, chosen, 1.0).sum(0)
    # A stable sort: where votes are equal the first column wins, on every device.
    winners = votes.sort(descending=True, stable=True).indices[:count]
    return winners.expand_as(chosen)


def distance(likeness: Tensor) -> Tensor:
    """Cosine distance from the queries to their chosen keys: `[B, k]`, summed over k -> scalar.

    The published term is the negative cosine: the same gradient, another zero.
    """
    return (1 - likeness).sum(1).mean()
