"""The memory bank: a few slots, shared by all layers, that follow the queries they answer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# A slot that gets less than this share of an image's attention has not really been asked.
NEGLIGIBLE = 1e-4


class Recall(NamedTuple):
    """The slots of H heads as one pass reads them: what they are asked by, and what they answer.

    A head compares projected queries with projected slots, and projects the slots it found. As the
    slots are the same for all layers, all three projections are folded into them.
    """

    questions: Tensor  # [H·M, D]
    offsets: Tensor  # [H·M]
    answers: Tensor  # [H·M, D]
    base: Tensor  # [D], what is answered whatever was asked
    heads: int

    def attend(self, query: Tensor) -> Tensor:
        """How much each head attends to each slot: ``query [B, D] -> [B, H, M]``."""
        asked = F.linear(_standardise(query), self.questions, self.offsets)
        return asked.view(len(query), self.heads, -1).softmax(dim=-1)

    def retrieved(self, attention: Tensor) -> Tensor:
        """What is read with an attention ``[B, H, M]``: ``[B, D]``."""
        return torch.addmm(self.base, attention.flatten(1), self.answers)


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

    def recall(self) -> Recall:
        """The slots as they are now, ready to be read by every layer of a pass."""
        width = self.keys.shape[-1]
        # Cloned, so that a write between forward and backward leaves the graph intact.
        k = self._split(self.to_key(self.keys.clone()))  # [H, M, D/H]
        v = self._split(self.to_value(self.values.clone()))
        k = k / k.shape[-1] ** 0.5
        asking = self.to_query.weight.view(self.heads, -1, width)  # [H, D/H, D]
        answering = self._split(self.to_output.weight).mT  # [H, D/H, D]
        offsets = k @ self.to_query.bias.view(self.heads, -1, 1)  # [H, M, 1]
        return Recall(
            (k @ asking).flatten(0, 1),
            offsets.flatten(),
            (v @ answering).flatten(0, 1),
            self.to_output.bias,
            self.heads,
        )

    @torch.no_grad()
    def write(self, queries: Sequence[Tensor], attentions: Sequence[Tensor]) -> None:
        """One moving-average step from the layers' queries ``[B, D]`` and attentions ``[B, H, M]``.

        Every slot moves towards the mean query that attended to it, averaged over the layers in
        which it was attended to at all; slots nobody asked stay. Heads count alike.
        """
        if self.learnable:
            return
        query = _standardise(torch.stack(list(queries)))  # [L, B, D]
        attention = torch.stack(list(attentions)).mean(2)  # [L, B, M]
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
