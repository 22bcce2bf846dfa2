"""OS-Prompt (Kim et al., 2024): prompts in a single pass, queried by each block's CLS token.

    q_l = CLS at the input of block l
    α_n = cos(q_l, K_n)
    prefix = Σ_n α_n P_n

The query is not detached, so prompts also receive gradients through the queries of later blocks.
At block 0 the CLS token, and so the prefix, is the same for every image.

OS-Prompt++ keeps the queries close to a reference, the feature of the ViT without prompts, which
takes a second pass in training only.
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
from sodap.prompting import Inspector

QueryDistance = Literal["sim", "feat"]


class OSPromptConfig(GrowingPrefixesConfig):
    """Defaults are the paper's on Residual SODAP: 150 prompts over three stages."""

    rows_per_stage: Rows = 50
    length: Length = 8


class QueriedPrefixes:
    """The `prefix` of one pass through the backbone; keeps the queries of all layers."""

    def __init__(self, pool: GrowingPool, inspector: Inspector | None = None) -> None:
        self.width = pool.width
        self.inspector = inspector
        self.keys = pool.keys.rows  # [L, N, D]
        self.prompts = pool.prompts.rows  # [L, N, length · D]
        self._queries: list[Tensor] = []  # [B, D] each

    def __call__(self, layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
        if layer >= len(self.keys):
            return None
        with torch.autocast(tokens.device.type, enabled=False):
            query = tokens[:, 0].to(self.keys.dtype)
            self._queries.append(query)
            weights = cosine_similarity(query, self.keys[layer])
            if self.inspector is not None:
                weights = self.inspector(weights)
            return weighted_prefix(weights, self.prompts[layer], self.width)

    @property
    def queries(self) -> Tensor:
        """`[L, B, D]`"""
        return torch.stack(self._queries)


@register_method
class OSPrompt(GrowingPrefixes):
    """Prefixes composed of all prompts, queried by the CLS token in a single pass."""

    name = "os-prompt"
    trains = "newest prompts, keys, head"
    Config = OSPromptConfig

    config: OSPromptConfig

    def features(self, images: Tensor, inspector: Inspector | None = None) -> Tensor:
        features: Tensor = self.backbone(images, prefix=QueriedPrefixes(self.pool, inspector))
        return features


class OSPromptPlusConfig(OSPromptConfig):
    """The default weight is that of the published scripts."""

    qr: QueryDistance | None = Field(
        None,
        description="compare query and reference by their similarities to the keys (sim) or "
        "directly (feat); default: sim, or feat if faithful",
    )
    qr_weight: float = Field(1e-4, gt=0, description="weight of the distance to the reference")
    faithful: bool = Field(False, description="qr=feat by default, as in the released code")

    @property
    def distance(self) -> QueryDistance:
        return self.qr or ("feat" if self.faithful else "sim")


@register_method
class OSPromptPlus(OSPrompt):
    """OS-Prompt with queries kept close to the features of the backbone without prompts."""

    name = "os-prompt++"
    Config = OSPromptPlusConfig

    config: OSPromptPlusConfig

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        reference = self.frozen_features(batch.images)
        prefixes = QueriedPrefixes(self.pool)
        logits = self.head(self.backbone(batch.images, prefix=prefixes))
        with torch.autocast(batch.images.device.type, enabled=False):
            distance = self.query_distance(prefixes, reference.to(prefixes.keys.dtype))
        return {
            "ce": F.cross_entropy(logits, batch.labels),
            "qr": self.config.qr_weight * distance,
        }

    def query_distance(self, prefixes: QueriedPrefixes, reference: Tensor) -> Tensor:
        """Distance of the queries of a pass from the reference `[B, D]`."""
        if self.config.distance == "feat":
            return feature_distance(prefixes.queries, reference)
        return similarity_distance(prefixes.queries, reference, prefixes.keys)


def similarity_distance(queries: Tensor, reference: Tensor, keys: Tensor) -> Tensor:
    """Squared distance of the similarities to the keys, summed over layers, mean of the batch.

    `[L, B, D], [B, D], [L, N, D] -> []`. Block 0 has a constant query, but its keys get a gradient.
    """
    difference = cosine_similarity(queries, keys) - cosine_similarity(reference, keys)  # [L, B, N]
    return difference.square().sum(-1).mean(-1).sum()


def feature_distance(queries: Tensor, reference: Tensor) -> Tensor:
    """Mean squared difference, summed over layers: `[L, B, D], [B, D] -> []`.

    Keys do not matter here, and block 0 gets no gradient.
    """
    return (queries - reference).square().mean((1, 2)).sum()
