"""L2P (Wang et al., 2022): each image chooses a few prompts from a pool shared by all domains.

The chosen prompts are added to the sequence as tokens, and the head reads the mean of these tokens
after the last block. Nothing is frozen between stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sodap.methods.base import Batch, MethodConfig, Observations, StageInfo
from sodap.methods.parts.query_key import (
    QueryKeyConfig,
    QueryKeyMethod,
    chosen_after,
    equal_weights,
    most_similar,
    pull_loss,
)
from sodap.methods.parts.similarity import cosine_similarity
from sodap.methods.registry import register_method
from sodap.prompting import NOTHING, Inspection, Intervention
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class L2PConfig(QueryKeyConfig):
    """Defaults are the published sizes for CIFAR-100."""

    length: int = Field(5, ge=1, le=1000, description="tokens per prompt")


@register_method
class L2P(QueryKeyMethod):
    """Prompts as tokens, chosen by each image from one pool and read by the head."""

    name = "l2p"
    trains = "prompts, keys, head"
    Config = L2PConfig
    without_decay = ("prompts", "keys")  # decay would shrink prompts that no image chooses
    running = ("trained",)

    config: L2PConfig
    trained: Tensor  # [M], whether a training image has chosen the key

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c, width = self.config, backbone.width
        prompts, keys = (randomness.generator(f"init {name}") for name in ("prompts", "keys"))
        self.prompts = nn.Parameter(self.initial(prompts, c.pool_size, c.length, width))
        self.keys = nn.Parameter(self.initial(keys, c.pool_size, width))
        self.register_buffer("trained", torch.zeros(c.pool_size, dtype=torch.bool))
        self._chosen: Tensor | None = None

    def prompted_features(
        self, images: Tensor, chosen: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """Mean `[B, D]` of the tokens of the prompts `chosen` `[B, k]` after the final norm.

        Prompts enter after CLS and have no position embedding, so their order does not matter.
        Those that are not `kept` `[B, k]` are zero.
        """
        prompts = self.prompts[chosen]  # [B, k, L, D]
        if kept is not None:
            prompts = prompts * kept[..., None, None]
        prompts = prompts.flatten(1, 2)  # [B, k L, D]
        first = self.backbone.prefix_tokens

        def port(layer: int, tokens: Tensor) -> Tensor:
            if layer > 0:
                return tokens
            return torch.cat([tokens[:, :first], prompts.to(tokens), tokens[:, first:]], 1)

        last = self.backbone.tokens(images, port)[:, first : first + prompts.shape[1]]
        return self.backbone.norm(last).float().mean(1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.prompted_features(images, self.choose(images)))
        return logits

    def choose(self, images: Tensor) -> Tensor:
        """Prompts that each image chooses at test, `[B, k]`."""
        similarity = cosine_similarity(self.frozen_features(images), self.keys)
        if not self.config.faithful:
            # Untrained keys are similar to an image only by chance: rank them last.
            similarity = torch.where(self.trained, similarity, similarity - 4)
        return most_similar(similarity, self.config.top_k, vote=self.config.faithful)

    @torch.no_grad()
    def inspect(self, images: Tensor, intervention: Intervention = NOTHING) -> Inspection:
        chosen = self.choose(images)
        selection = equal_weights(chosen, torch.ones_like(self.trained))
        chosen, kept = chosen_after(intervention, selection, self.config.top_k)
        logits = self.head(self.prompted_features(images, chosen, kept))
        return Inspection(logits, [selection], [])

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        similarity = cosine_similarity(self.frozen_features(batch.images), self.keys)
        chosen = most_similar(similarity.detach(), self.config.top_k, vote=self.config.faithful)
        self._chosen = chosen
        logits = self.head(self.prompted_features(batch.images, chosen))
        return {
            "ce": F.cross_entropy(logits, batch.labels),
            "pull": self.config.pull * pull_loss(similarity.gather(1, chosen)),
        }

    def after_step(self) -> None:
        assert self._chosen is not None
        self.trained.index_fill_(0, self._chosen.flatten(), True)
        self._chosen = None

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        return {"prompts_trained": int(self.trained.sum())}
