"""Base class of L2P and DualPrompt: an image chooses prompts by the similarity of their keys.

The query of an image is its feature from the frozen backbone without prompts. The prompts with the
most similar keys take part in a second pass, and a loss pulls these keys towards the query.
"""

from __future__ import annotations

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from sodap.methods.base import MethodConfig
from sodap.methods.parts.linear_head import LinearHeadMethod
from sodap.prompting import Intervention, Selection
from sodap.prompting.inspection import strongest


class QueryKeyConfig(MethodConfig):
    """Options of both methods."""

    pool_size: int = Field(10, ge=1, le=100_000, description="prompts in the pool")
    top_k: int = Field(5, ge=1, validate_default=True, description="prompts that an image chooses")
    pull: float = Field(
        1.0, ge=0, description="weight of the distance between a query and the keys of its prompts"
    )
    faithful: bool = Field(
        False,
        description="as published: prompts are chosen by a vote of the batch, initial values are "
        "U(-1, 1), gradients are clipped at norm 1, and untrained keys can be chosen",
    )

    @field_validator("top_k")
    @classmethod
    def _fits_the_pool(cls, top_k: int, others: ValidationInfo) -> int:
        if top_k > others.data.get("pool_size", top_k):
            raise ValueError(f"must be at most pool_size, which is {others.data['pool_size']}")
        return top_k


class QueryKeyMethod(LinearHeadMethod):
    """Initial values and gradient clipping of L2P and DualPrompt."""

    family = "prompt"
    stores = "nothing"
    config: QueryKeyConfig

    def initial(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Initial values of prompts or keys.

        Normal with standard deviation 0.02, as the tokens of a ViT. The published U(-1, 1) is so
        large that a small learning rate hardly changes it.
        """
        if self.config.faithful:
            return torch.rand(shape, generator=generator) * 2 - 1
        return torch.randn(shape, generator=generator) * 0.02

    def before_step(self) -> None:
        if self.config.faithful:
            nn.utils.clip_grad_norm_([p for p in self.parameters() if p.requires_grad], 1.0)


def most_similar(similarity: Tensor, count: int, *, vote: bool) -> Tensor:
    """Indices of the `count` largest entries in each row: `[B, N] -> [B, count]`.

    With `vote`, every row gets the indices that most rows of the batch have chosen.
    """
    chosen = similarity.topk(count, dim=-1).indices
    if not vote:
        return chosen
    votes = torch.zeros_like(similarity).scatter_(1, chosen, 1.0).sum(0)
    # A stable sort: equal votes go to the lower index on every device.
    winners = votes.sort(descending=True, stable=True).indices[:count]
    return winners.expand_as(chosen)


def equal_weights(chosen: Tensor, active: Tensor) -> Selection:
    """Chosen prompts `[B, k]` as weights: `1 / k` for each of them. `active` `[N]` is a mask."""
    weights = torch.zeros(len(chosen), len(active), device=chosen.device)
    return Selection(weights.scatter_(1, chosen, 1 / chosen.shape[1]), active)


def chosen_after(
    intervention: Intervention, selection: Selection, count: int
) -> tuple[Tensor, Tensor]:
    """Prompts `[B, count]` that an intervention leaves to each image, and which are not zero."""
    chosen, weights = strongest(intervention.weights(0, selection), count)
    return chosen, weights > 0


def pull_loss(similarity: Tensor) -> Tensor:
    """Mean over the batch of the summed cosine distances to the chosen keys: `[B, k] -> []`.

    The published term is the negative cosine, which has the same gradient.
    """
    return (1 - similarity).sum(1).mean()
