"""The query enhancer, equations (2) and (3)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class QueryEnhancer(nn.Module):
    """Two-layer network with a skip: ``q~ = q + GELU(LN([q; g; r] W1)) W2``."""

    def __init__(
        self, width: int, bottleneck: int, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.W1 = nn.Parameter(torch.empty(3 * width, bottleneck))
        self.norm = nn.LayerNorm(bottleneck)
        self.W2 = nn.Parameter(torch.empty(bottleneck, width))
        nn.init.xavier_uniform_(self.W1, generator=generator)
        nn.init.xavier_uniform_(self.W2, generator=generator)

    def forward(self, query: Tensor, context: Tensor, retrieved: Tensor) -> Tensor:
        """Enhance the layer's CLS token by context and memory: three ``[B, D]`` -> ``[B, D]``."""
        joined = torch.cat([query, context, retrieved], dim=-1)  # (2)
        hidden: Tensor = self.norm(joined @ self.W1)
        return query + F.gelu(hidden) @ self.W2  # (3)
