"""L2P: a pool of prompts that all domains share; every image chooses the few whose keys fit.

The chosen prompts travel through the network as further tokens, and what the head sees is their
mean. Nothing is frozen between stages: old and new domains write into the same pool.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.methods.base import Batch, MethodConfig, Observations, StageInfo
from sodap.methods.parts.query_key import QueryKeyConfig, QueryKeyMethod, distance, nearest
from sodap.methods.parts.similarity import cosine_similarity
from sodap.methods.registry import register_method
from sodap.randomness import Randomness


class L2PConfig(QueryKeyConfig):
    """Sizes are those of the published CIFAR-100 configuration."""

    length: int = Field(5, ge=1, le=1000, description="tokens of one prompt")


@register_method
class L2P(QueryKeyMethod):
    """Prompts as tokens, chosen by image; the head reads what has become of them."""

    name = "l2p"
    trains = "prompts, keys, head"
    Config = L2PConfig
    running = ("trained",)

    config: L2PConfig
    trained: Tensor  # [M], keys that an image of a training batch has chosen

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c, width = self.config, backbone.width
        prompts, keys = (randomness.generator(f"init {name}") for name in ("prompts", "keys"))
        self.prompts = nn.Parameter(self.drawn(prompts, c.pool_size, c.length, width))
        self.keys = nn.Parameter(self.drawn(keys, c.pool_size, width))
        self.register_buffer("trained", torch.zeros(c.pool_size, dtype=torch.bool))
        self._chosen: Tensor | None = None

    def features(self, images: Tensor, chosen: Tensor) -> Tensor:
        """`[B, D]`: the mean, after the final norm, of the prompts `chosen [B, k]` as they leave.

        They enter behind CLS without a position embedding. So they are a set: which of them came
        first in the ranking makes no difference.
        """
        prompts = self.prompts[chosen].flatten(1, 2)  # [B, k L, D]
        first = self.backbone.prefix_tokens

        def port(layer: int, tokens: Tensor) -> Tensor:
            if layer > 0:
                return tokens
            return torch.cat([tokens[:, :first], prompts.to(tokens), tokens[:, first:]], 1)

        leaving = self.backbone.tokens(images, port)[:, first : first + prompts.shape[1]]
        return self.backbone.norm(leaving).float().mean(1)

    def forward(self, images: Tensor) -> Tensor:
        likeness = cosine_similarity(self.query(images), self.keys)
        if not self.config.faithful:
            # A key that was never pulled anywhere is near an image by chance: it comes last.
            likeness = torch.where(self.trained, likeness, likeness - 4)
        chosen = nearest(likeness, self.config.top_k, vote=self.config.faithful)
        logits: Tensor = self.head(self.features(images, chosen))
        return logits

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        likeness = cosine_similarity(self.query(batch.images), self.keys)
        chosen = nearest(likeness.detach(), self.config.top_k, vote=self.config.faithful)
        self._chosen = chosen
        logits = self.head(self.features(batch.images, chosen))
        return {
            "ce": F.cross_entropy(logits, batch.labels),
            "pull": self.config.pull * distance(likeness.gather(1, chosen)),
        }

    def after_step(self) -> None:
        assert self._chosen is not None
        self.trained.index_fill_(0, self._chosen.flatten(), True)
        self._chosen = None

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        return {"prompts_trained": int(self.trained.sum())}
