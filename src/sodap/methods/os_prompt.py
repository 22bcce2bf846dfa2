"""OS-Prompt (Kim et al., 2024): prompts in one pass, asked by each block's own CLS token.

    q_l = CLS at the input of block l
    α_n = cos(q_l, K_n)
    prefix = Σ_n α_n P_n

There is no pass before the pass. The query is not detached: what block 0 was given shapes what
block 1 asks, and learns from it. At block 0 CLS is the same for every image, and so is its prefix.

OS-Prompt++ keeps the queries near those of a reference, the features of the unprompted ViT. The
reference is a second pass, in training alone.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.methods.base import Batch
from sodap.methods.parts.growing_pool import GrowingPool, weighted_prefix
from sodap.methods.parts.growing_prompts import GrowingPrefixes, GrowingPrefixesConfig, Length, Rows
from sodap.methods.parts.similarity import cosine_similarity
from sodap.methods.registry import register_method

QueryDistance = Literal["sim", "feat"]


class OSPromptConfig(GrowingPrefixesConfig):
    """The defaults are 150 prompts over three stages, as Residual SODAP was compared with."""

    rows_per_stage: Rows = 50
    length: Length = 8


class AskingPass:
    """One pass through the backbone, as its `prefix`: what each block asked, and was given."""

    def __init__(self, pool: GrowingPool) -> None:
        self.width = pool.width
        self.keys = pool.keys.rows  # [L, N, D]
        self.prompts = pool.prompts.rows  # [L, N, length · D]
        self.asked: list[Tensor] = []  # [B, D] each

    def __call__(self, layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
        if layer >= len(self.keys):
            return None
        with torch.autocast(tokens.device.type, enabled=False):
            query = tokens[:, 0].to(self.keys.dtype)
            self.asked.append(query)
            weights = cosine_similarity(query, self.keys[layer])
            return weighted_prefix(weights, self.prompts[layer], self.width)

    @property
    def queries(self) -> Tensor:
        """`[L, B, D]`"""
        return torch.stack(self.asked)


@register_method
class OSPrompt(GrowingPrefixes):
    """Prefixes composed of all prompts, asked by the CLS token on its way: a single pass."""

    name = "os-prompt"
    trains = "newest prompts, keys, head"
    Config = OSPromptConfig

    config: OSPromptConfig

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images, prefix=AskingPass(self.pool))
        return features


class OSPromptPlusConfig(OSPromptConfig):
    """What the queries are compared by; the weight is the one of the published scripts."""

    qr: QueryDistance | None = Field(
        None,
        description="compare queries with the reference by their similarities to the keys (sim) or "
        "coordinate by coordinate (feat); default: sim, and feat if faithful",
    )
    qr_weight: float = Field(1e-4, gt=0, description="weight of the distance to the reference")
    faithful: bool = Field(
        False, description="compare coordinates (feat), as the released code does"
    )

    @property
    def distance(self) -> QueryDistance:
        return self.qr or ("feat" if self.faithful else "sim")


@register_method
class OSPromptPlus(OSPrompt):
    """OS-Prompt whose queries stay near the features of the unprompted backbone."""

    name = "os-prompt++"
    Config = OSPromptPlusConfig

    config: OSPromptPlusConfig

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            reference = self.backbone(batch.images)
        answered = AskingPass(self.pool)
        logits = self.head(self.backbone(batch.images, prefix=answered))
        with torch.autocast(reference.device.type, enabled=False):
            distance = self.to_reference(answered, reference.to(answered.keys.dtype))
        return {
            "ce": F.cross_entropy(logits, batch.labels),
            "qr": self.config.qr_weight * distance,
        }

    def to_reference(self, answered: AskingPass, reference: Tensor) -> Tensor:
        """How far the queries of a pass are from `reference [B, D]`."""
        if self.config.distance == "feat":
            return feature_distance(answered.queries, reference)
        return similarity_distance(answered.queries, reference, answered.keys)


def similarity_distance(queries: Tensor, reference: Tensor, keys: Tensor) -> Tensor:
    """Squared distance of the similarities to the keys, summed over layers, mean of the batch.

    `[L, B, D], [B, D], [L, N, D] -> []`. Block 0, whose query is a constant, still moves its keys.
    """
    apart = cosine_similarity(queries, keys) - cosine_similarity(reference, keys)  # [L, B, N]
    return apart.square().sum(-1).mean(-1).sum()


def feature_distance(queries: Tensor, reference: Tensor) -> Tensor:
    """Mean squared difference of the coordinates, summed over layers: `[L, B, D], [B, D] -> []`.

    No key has a part in it, and block 0 has no gradient at all.
    """
    return (queries - reference).square().mean((1, 2)).sum()
