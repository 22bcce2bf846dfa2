"""The adapter: the way from a layer's CLS token down to the prompt pool, and back up."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sodap.prompting.enhancer import QueryEnhancer
from sodap.prompting.memory import Recall
from sodap.prompting.visit import Maps


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

    def way(self, context: Tensor, recall: Recall | None, prompts: Tensor) -> "Way":
        """The maps for one pass: ``context [B, D]`` and ``prompts [N, d]``, scaled by their share.

        Whatever no layer changes is multiplied out here.
        """
        up = prompts @ self.W_up
        if self.enhancer is None:
            return Way(up, self.W_down)
        assert recall is not None, "the enhancer asks the memory"
        width, bottleneck = self.W_down.shape
        for_query, for_context, for_memory = self.enhancer.W1.chunk(3)
        return Way(
            up,
            down=torch.cat([self.W_down, for_query], dim=1),
            start=torch.addmm(recall.base @ for_memory, context, for_context),
            told=recall.answers @ for_memory,
            norm=self.enhancer.norm,
            # Two narrow products in a row take less than one wide one.
            last=(self.enhancer.W2 @ self.W_down,)
            if bottleneck < 2 * width
            else (self.enhancer.W2, self.W_down),
        )

    def maps(self, context: Tensor, recall: Recall, prompts: Tensor, keys: Tensor) -> Maps:
        """The same for `sodap.prompting.visit`, with the memory's questions and the pool's keys."""
        way = self.way(context, recall, prompts)
        assert self.enhancer is not None
        assert way.start is not None
        assert way.told is not None
        return Maps(
            ask=torch.cat([recall.questions.mT, way.down], dim=1),
            totals=recall.questions.sum(1),
            offsets=recall.offsets,
            start=way.start,
            told=way.told,
            gain=self.enhancer.norm.weight,
            shift=self.enhancer.norm.bias,
            keys=keys,
            up=way.up,
            inner=way.last[0],
            outer=way.last[1] if len(way.last) > 1 else None,
        )


class Way(NamedTuple):
    """An adapter with the memory's answers, the image's context and the prompts folded into it.

    ``z = (q + GELU(LN([q; g; r] W1)) W2) W_down`` and ``q + p W_up`` are chains of products, in
    which only the query ``q`` and what follows from it differ between layers.
    """

    up: Tensor  # [N, D], each prompt as it is added to CLS
    down: Tensor  # [D, d], or [D, 2d]: beside W_down the part of W1 that meets the query
    start: Tensor | None = None  # [B, d], what the context and the memory's base add to LN's input
    told: Tensor | None = None  # [H·M, d], what each slot adds to it
    norm: nn.Module | None = None
    last: tuple[Tensor, ...] = ()  # W2 W_down [d, d], or the two of them

    def compress(self, query: Tensor, attention: Tensor | None) -> Tensor:
        """``z [B, d]`` from the query ``[B, D]`` and the memory's attention ``[B, H, M]``."""
        if self.norm is None:
            return query @ self.down
        assert attention is not None
        assert self.start is not None
        assert self.told is not None
        direct, hidden = (query @ self.down).chunk(2, dim=-1)
        hidden = torch.addmm(hidden + self.start, attention.flatten(1), self.told)
        hidden = F.gelu(self.norm(hidden))
        for matrix in self.last[:-1]:
            hidden = hidden @ matrix
        return torch.addmm(direct, hidden, self.last[-1])

    def inject(self, query: Tensor, weights: Tensor) -> Tensor:
        """``q + p_out W_up`` from the weights ``[B, N]`` of the prompts."""
        return torch.addmm(query, weights.to(query.dtype), self.up)
