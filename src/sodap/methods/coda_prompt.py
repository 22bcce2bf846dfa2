"""CODA-Prompt (Smith et al., 2023): a weighted sum of all prompts.

    q = frozen ViT(image), without prompts
    α_n = cos(q ∘ A_n, K_n)
    prefix = Σ_n α_n P_n

Weights are in [-1, 1], may be negative and do not sum to 1. The query comes from a first pass
without prompts, so the prefixes of all layers are computed at once.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from sodap.methods.base import Batch
from sodap.methods.parts.growing_pool import orthogonality_penalty, weighted_prefix
from sodap.methods.parts.growing_prompts import GrowingPrefixes, GrowingPrefixesConfig, Length, Rows
from sodap.methods.parts.similarity import attended_cosine_similarity
from sodap.methods.registry import register_method
from sodap.prompting import Inspector

FIRST_RELEASE_FACTOR = 1e-6
"""Hidden factor of the penalty in the first public release, under which the paper's weight of 0.1
was chosen."""


class CodaPromptConfig(GrowingPrefixesConfig):
    """Defaults are the paper's on Residual SODAP: 100 prompts over three stages."""

    rows_per_stage: Rows = 33
    length: Length = 4
    ortho: float = Field(
        0.1, ge=0, description="weight of the orthogonality penalty on prompts, keys and attention"
    )
    faithful: bool = Field(
        False, description="multiply the penalty by 1e-6, as the first release does"
    )


@register_method
class CodaPrompt(GrowingPrefixes):
    """Prefixes composed of all prompts, weighted by the features of a pass without prompts."""

    name = "coda-prompt"
    trains = "newest prompts, keys, attention, head"
    Config = CodaPromptConfig
    attention = True

    config: CodaPromptConfig

    def features(self, images: Tensor, inspector: Inspector | None = None) -> Tensor:
        keys, values = self.prefixes(self.frozen_features(images), inspector)

        def prefix(layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
            return (keys[layer], values[layer]) if layer < len(keys) else None

        features: Tensor = self.backbone(images, prefix=prefix)
        return features

    def prefixes(self, query: Tensor, inspector: Inspector | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of all layers: `[B, D] -> [L, B, length / 2, D]` twice."""
        assert self.pool.attention is not None
        keys, prompts = self.pool.keys.rows, self.pool.prompts.rows
        attention = self.pool.attention.rows
        with torch.autocast(query.device.type, enabled=False):
            weights = attended_cosine_similarity(query.to(keys.dtype), attention, keys)
            if inspector is not None:
                weights = torch.stack([inspector(each) for each in weights])
            return weighted_prefix(weights, prompts, self.pool.width)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        losses = super().losses(batch)
        if self.config.ortho:
            factor = FIRST_RELEASE_FACTOR if self.config.faithful else 1.0
            losses["ortho"] = self.config.ortho * factor * self.penalty()
        return losses

    def penalty(self) -> Tensor:
        """Orthogonality penalty on keys, prompts and attention, frozen rows included."""
        with torch.autocast(self.head.weight.device.type, enabled=False):
            return torch.stack([orthogonality_penalty(s.rows) for s in self.pool.sets]).sum()
