"""CODA-Prompt (Smith et al., 2023): every prompt answers, weighted by an attended cosine.

    q = frozen ViT(image), without prompts       one pass to ask ...
    α_n = cos(q ∘ A_n, K_n)
    prefix = Σ_n α_n P_n                          ... and one to answer

The weights are in [-1, 1], do not sum to 1, and may be negative. Everything a layer is given is
known before the second pass begins, so all layers are computed at once.
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

FIRST_RELEASE = 1e-6
"""The first public release multiplied the penalty by this, out of sight of its options. The
paper's weight of 0.1 was chosen under it, and means 1e-7 of the formula as it is printed."""


class CodaPromptConfig(GrowingPrefixesConfig):
    """The defaults are 100 prompts over three stages, as Residual SODAP was compared with."""

    rows_per_stage: Rows = 33
    length: Length = 4
    ortho: float = Field(
        0.1,
        ge=0,
        description="weight of the penalty on prompts, keys and A that are not orthogonal",
    )
    faithful: bool = Field(
        False, description="scale the penalty by the 1e-6 that the first release hid"
    )


@register_method
class CodaPrompt(GrowingPrefixes):
    """Prefixes composed of all prompts, asked with the features of an unprompted pass."""

    name = "coda-prompt"
    trains = "newest prompts, keys, attention, head"
    Config = CodaPromptConfig
    attention = True

    config: CodaPromptConfig

    def features(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            query = self.backbone(images)
        keys, values = self.prefixes(query)

        def prefix(layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
            return (keys[layer], values[layer]) if layer < len(keys) else None

        features: Tensor = self.backbone(images, prefix=prefix)
        return features

    def prefixes(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """What all layers attend to, `[B, D] -> [L, B, length / 2, D]` twice."""
        assert self.pool.attention is not None
        keys, prompts = self.pool.keys.rows, self.pool.prompts.rows
        with torch.autocast(query.device.type, enabled=False):
            weights = attended_cosine_similarity(
                query.to(keys.dtype), self.pool.attention.rows, keys
            )
            return weighted_prefix(weights, prompts, self.pool.width)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        losses = super().losses(batch)
        if self.config.ortho:
            losses["ortho"] = self.ortho_weight * self.penalty()
        return losses

    @property
    def ortho_weight(self) -> float:
        return self.config.ortho * (FIRST_RELEASE if self.config.faithful else 1.0)

    def penalty(self) -> Tensor:
        """How far keys, prompts and attention, old and new together, are from orthonormal."""
        with torch.autocast(self.head.weight.device.type, enabled=False):
            return torch.stack([orthogonality_penalty(each.rows) for each in self.pool.sets]).sum()
