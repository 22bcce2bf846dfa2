"""UniPrompt-CL (Oh and Shin, 2025): one small pool for all prompted blocks, in a single pass.

The predecessor of Residual SODAP. Before each of the first blocks, CLS asks the same pool; a prompt
is one vector of the model's width, and the weighted sum of all prompts joins the sequence as one
more token. A later stage adds a fifth of the first pool's size and freezes what is there.

From the description and the released code: a pool shared by the blocks, prompts without a length,
weights on all of them, a token before each of the first five blocks, 500 prompts and 100 a stage.
Our reading, where the two disagree or are silent:

- The weights are a softmax over cosines; the code multiplies by bare inner products and applies
  its softmax in the regulariser only. The temperature is ours.
- The token is put at the end. The code puts it in front of CLS and then goes on reading position
  0: later queries and the final feature are those of prompt tokens, not of CLS.
- The regulariser is left out. As released it is the mean of `1 - softmax`, which is `1 - 1 / N`
  for any weights: a constant without gradient.
- Earlier prompts do rest. The code marks a copy of them as frozen and trains them on.
- Rows start orthonormal, which is about as long as the code's, and one linear layer classifies,
  as in every other method.
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


class UniPromptConfig(MethodConfig):
    """The defaults are the published ones but for the temperature, which is ours."""

    pool_size: int = Field(500, ge=1, le=5000, description="prompts in the first stage")
    growth: float = Field(
        0.2, gt=0, le=1, description="prompts that join at a later stage, as a share of pool_size"
    )
    layers: int = Field(
        5, ge=1, description="a token joins before each of the first so many blocks"
    )
    temperature: float = Field(0.1, gt=0, description="of the softmax over cosines")
    faithful: bool = Field(
        False,
        description="as released: inner products as weights, tokens in front of CLS and read "
        "in its place, no final norm",
    )


@register_method
class UniPrompt(GrowingPrompts):
    """One pool for all layers, whose weighted sum joins the sequence as a token."""

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

    def features(self, images: Tensor) -> Tensor:
        keys, prompts = self.pool.keys.rows[0], self.pool.prompts.rows[0]  # [N, D] both

        def port(layer: int, tokens: Tensor) -> Tensor:
            if layer >= self.config.layers:
                return tokens
            with torch.autocast(tokens.device.type, enabled=False):
                prompt = self.weights_of(tokens[:, 0].to(keys.dtype), keys) @ prompts
            token = prompt.to(tokens.dtype).unsqueeze(1)
            in_order = [token, tokens] if self.config.faithful else [tokens, token]
            return torch.cat(in_order, dim=1)

        features: Tensor = self.backbone(images, port, norm=not self.config.faithful)
        return features

    def weights_of(self, query: Tensor, keys: Tensor) -> Tensor:
        """`[B, D], [N, D] -> [B, N]`: every prompt has a part in the answer."""
        if self.config.faithful:
            return query @ keys.mT
        return (cosine_similarity(query, keys) / self.config.temperature).softmax(dim=-1)
