"""UniPrompt-CL (Oh and Shin, 2025): one small pool for all prompted blocks, in a single pass.

The predecessor of Residual SODAP. Before each of the first blocks, CLS queries the same pool. A
prompt is one vector of the model's width, and the weighted sum of all prompts is added to the
sequence as a token. Each later stage freezes the pool and adds a fifth of its first size.

The paper and the released code disagree in places or leave things open. Our reading:

- Weights are a softmax over cosines with a temperature of our choice. The code uses inner products,
  and a softmax only in its regulariser.
- The token is added at the end. The code puts it before CLS but goes on reading position 0, so
  that later queries and the final feature come from prompt tokens.
- There is no regulariser. The released one is the mean of `1 - softmax`, the constant `1 - 1 / N`.
- Earlier prompts are frozen. The code freezes only a copy of them.
- Rows start orthonormal, with about the length that the code gives them, and the head is one linear
  layer, as in every other method.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from sodap.methods.base import MethodConfig
from sodap.methods.parts.growing_pool import GrowingPool
from sodap.methods.parts.growing_prompts import GrowingPrompts
from sodap.methods.parts.similarity import cosine_similarity
from sodap.methods.registry import register_method
from sodap.prompting import Inspector


class UniPromptConfig(MethodConfig):
    """Defaults are the published ones, except for the temperature, which is ours."""

    pool_size: int = Field(500, ge=1, le=5000, description="prompts in the first stage")
    growth: float = Field(
        0.2, gt=0, le=1, description="prompts added per later stage, as a share of pool_size"
    )
    layers: int = Field(5, ge=1, description="number of blocks with prompts, from the first")
    temperature: float = Field(0.1, gt=0, description="temperature of the softmax over cosines")
    faithful: bool = Field(
        False,
        description="as released: inner products as weights, prompt tokens before CLS and read in "
        "its place, no final norm",
    )


@register_method
class UniPrompt(GrowingPrompts):
    """One pool for all layers, whose weighted sum is added to the sequence as a token."""

    name = "uniprompt"
    trains = "newest prompts, keys, head"
    Config = UniPromptConfig

    config: UniPromptConfig

    def first_pool(self, generator: torch.Generator) -> GrowingPool:
        rows = self.config.pool_size
        return GrowingPool(self.backbone.width, layers=1, length=1, rows=rows, generator=generator)

    @property
    def rows_per_stage(self) -> int:
        return max(1, round(self.config.growth * self.config.pool_size))

    def features(self, images: Tensor, inspector: Inspector | None = None) -> Tensor:
        keys, prompts = self.pool.keys.rows[0], self.pool.prompts.rows[0]  # [N, D] both

        def port(layer: int, tokens: Tensor) -> Tensor:
            if layer >= self.config.layers:
                return tokens
            with torch.autocast(tokens.device.type, enabled=False):
                weights = self.prompt_weights(tokens[:, 0].to(keys.dtype), keys)
                prompt = (weights if inspector is None else inspector(weights)) @ prompts
            token = prompt.to(tokens.dtype).unsqueeze(1)
            return torch.cat([token, tokens] if self.config.faithful else [tokens, token], dim=1)

        features: Tensor = self.backbone(images, port, norm=not self.config.faithful)
        return features

    def prompt_weights(self, query: Tensor, keys: Tensor) -> Tensor:
        """Weights of all prompts: `[B, D], [N, D] -> [B, N]`."""
        if self.config.faithful:
            return query @ keys.mT
        return (cosine_similarity(query, keys) / self.config.temperature).softmax(dim=-1)
