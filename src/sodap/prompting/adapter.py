"""The adapter: the way from a layer's CLS token down to the prompt pool, and back up."""

import torch
from torch import Tensor, nn

from sodap.prompting.enhancer import QueryEnhancer


class Adapter(nn.Module):
    """The learned maps between tokens ``[B, D]`` and the bottleneck space of prompts ``[B, d]``."""

    def __init__(
        self,
        width: int,
        bottleneck: int,
        *,
        query_enhancer: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.enhancer = (
            QueryEnhancer(width, bottleneck, generator=generator) if query_enhancer else None
        )
        self.W_down = nn.Parameter(torch.empty(width, bottleneck))
        nn.init.xavier_uniform_(self.W_down, generator=generator)
        # Zero, so that the first forward pass is the untouched backbone's.
        self.W_up = nn.Parameter(torch.zeros(bottleneck, width))

    def compress(self, query: Tensor, context: Tensor, retrieved: Tensor | None) -> Tensor:
        """``z = q~ W_down``, where ``q~`` is the enhanced query, or the query without enhancer."""
        if self.enhancer is not None:
            query = self.enhancer(query, context, retrieved)
        return query @ self.W_down

    def inject(self, query: Tensor, prompt: Tensor) -> Tensor:
        """``q + p_out W_up``"""
        return query + prompt.to(query.dtype) @ self.W_up
