"""The memory bank: a few slots, shared by all layers, that follow the queries they answer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# A slot that gets less than this share of an image's attention has not really been asked.
NEGLIGIBLE = 1e-4


class MemoryBank(nn.Module):
    """``M_K, M_V [M, D]``, read by multi-head attention and written by a moving average.

    The projections of the read learn by gradient. The slots do not: ``write`` moves them towards
    the queries that attend to them. With ``learnable`` they are plain parameters instead, and
    ``write`` does nothing.
    """

    keys: Tensor
    values: Tensor

    def __init__(
        self,
        width: int,
        *,
        slots: int = 9,
        heads: int = 12,
        momentum: float = 0.99,
        learnable: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} does not split into {heads} heads")
        self.heads = heads
        self.momentum = momentum
        self.learnable = learnable
        for name in ("keys", "values"):
            slot = nn.init.normal_(torch.empty(slots, width), std=0.02, generator=generator)
            if learnable:
                self.register_parameter(name, nn.Parameter(slot))
            else:
                self.register_buffer(name, slot)
        self.to_query = _projection(width, generator)
        self.to_key = _projection(width, generator)
        self.to_value = _projection(width, generator)
        self.to_output = _projection(width, generator)

    def read(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """What the slots answer to ``query [B, D]``: retrieved ``[B, D]``, attention ``[B, M]``.

        The attention is the mean over the heads.
        """
        # Cloned, so that a write between forward and backward leaves the graph intact.
        slots_k, slots_v = self.keys.clone(), self.values.clone()
        q = self._split(self.to_query(_standardise(query)))  # [H, B, D/H]
        k = self._split(self.to_key(slots_k))  # [H, M, D/H]
        v = self._split(self.to_value(slots_v))
        attention = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)  # [H, B, M]
        retrieved: Tensor = self.to_output((attention @ v).transpose(0, 1).flatten(1))
        return retrieved, attention.mean(0)

    @torch.no_grad()
    def write(self, queries: Sequence[Tensor], attentions: Sequence[Tensor]) -> None:
        """One moving-average step from the queries ``[B, D]`` and attentions ``[B, M]`` of layers.

        Every slot moves towards the mean query that attended to it, averaged over the layers in
        which it was attended to at all; slots nobody asked stay.
        """
        if self.learnable:
            return
        query = _standardise(torch.stack(list(queries)))  # [L, B, D]
        attention = torch.stack(list(attentions))  # [L, B, M]
        mass = attention.sum(1).unsqueeze(-1)  # [L, M, 1]
        asked = mass > NEGLIGIBLE * attention.shape[1]
        mean_query = torch.where(asked, attention.mT @ query / mass, 0.0)  # [L, M, D]
        layers = asked.sum(0)  # [M, 1]
        target = mean_query.sum(0) / layers.clamp(min=1)
        step = (1 - self.momentum) * (layers > 0).to(target.dtype)
        self.keys.lerp_(target, step)
        self.values.lerp_(target, step)

    def _split(self, rows: Tensor) -> Tensor:
        """``[R, D] -> [H, R, D/H]``"""
        return rows.view(len(rows), self.heads, -1).transpose(0, 1)


def _standardise(query: Tensor) -> Tensor:
    """LayerNorm without parameters: CLS norms grow with depth, and all layers share the slots."""
    return F.layer_norm(query, query.shape[-1:])


def _projection(width: int, generator: torch.Generator | None) -> nn.Linear:
    linear = nn.Linear(width, width)
    nn.init.xavier_uniform_(linear.weight, generator=generator)
    nn.init.zeros_(linear.bias)
    return linear
