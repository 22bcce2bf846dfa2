"""The adapter: learned maps between the backbone's width and the width of prompts."""

import torch
from torch import Tensor, nn

from sodap.prompting.enhancer import QueryEnhancer


class Adapter(nn.Module):
    """``W_down``, ``W_up`` and the query enhancer, of one layer or shared by all of them."""

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
        # Zero, so that the first forward pass equals that of the untouched backbone.
        self.W_up = nn.Parameter(torch.zeros(bottleneck, width))

    def down(self, enhanced: Tensor) -> Tensor:
        """Compress an enhanced query: ``z = q~ W_down``, ``[B, D] -> [B, d]``."""
        return enhanced @ self.W_down

    def inject(self, query: Tensor, prompt: Tensor) -> Tensor:
        """Add a prompt to the CLS token, equation (7): ``[B, D], [B, d] -> [B, D]``."""
        return query + prompt @ self.W_up
