"""The memory bank: slots for all layers, read by attention, written by a moving average."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sodap.prompting.clustering import cluster_centres

NEGLIGIBLE = 1e-4
"""A slot that gets less than this share of the attention of a batch is not written."""


class MemoryBank(nn.Module):
    """``M_K, M_V [M, D]``, read by multi-head attention, equation (1).

    The projections of the read are trained by gradient. The slots are not: `write` moves them
    towards the queries that attend to them, and `write_nearest` moves each slot towards the queries
    that are nearest to it. With ``learnable=True`` they are parameters, and writing does nothing.
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
        norm: bool = True,
        learnable: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} cannot be split into {heads} heads")
        self.heads = heads
        self.momentum = momentum
        self.norm = norm
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

    def forward(
        self, query: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read with queries ``[B, D]``: retrieved ``[B, D]`` and attention ``[B, H, M]``.

        ``keys`` and ``values`` ``[M, D]`` replace the slots in this read.
        """
        keys = self.keys if keys is None else keys
        values = self.values if values is None else values
        q = self.split_heads(self.to_query(self.standardise(query)))  # [H, B, D/H]
        # Cloned, so that a write between forward and backward leaves the graph intact.
        k = self.split_heads(self.to_key(keys.clone()))  # [H, M, D/H]
        v = self.split_heads(self.to_value(values.clone()))
        attention = (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1)  # [H, B, M]
        answers = (attention @ v).transpose(0, 1).flatten(1)  # [B, D]
        retrieved: Tensor = self.to_output(answers)
        return retrieved, attention.transpose(0, 1)

    def split_heads(self, rows: Tensor) -> Tensor:
        """Split rows into heads: ``[R, D] -> [H, R, D/H]``."""
        return rows.view(len(rows), self.heads, -1).transpose(0, 1)

    def standardise(self, query: Tensor) -> Tensor:
        """Apply LayerNorm without parameters, unless ``norm`` is off.

        CLS norms grow with depth, but all layers share the slots.
        """
        return F.layer_norm(query, query.shape[-1:]) if self.norm else query

    @torch.no_grad()
    def write(self, queries: Sequence[Tensor], attentions: Sequence[Tensor]) -> None:
        """Move the slots one step towards the layers' queries ``[B, D]``, given ``[B, H, M]``.

        The target of a slot is the attention-weighted mean query of a layer, averaged over the
        layers in which the slot got any attention; slots without attention stay. Heads count
        equally.
        """
        if self.learnable:
            return
        query = self.standardise(torch.stack(list(queries)))  # [L, B, D]
        attention = torch.stack(list(attentions)).mean(2)  # [L, B, M]
        mass = attention.sum(1).unsqueeze(-1)  # [L, M, 1]
        attended = mass > NEGLIGIBLE * attention.shape[1]
        mean_query = torch.where(attended, attention.mT @ query / mass, 0.0)  # [L, M, D]
        layers = attended.sum(0)  # [M, 1]
        target = mean_query.sum(0) / layers.clamp(min=1)
        step = (1 - self.momentum) * (layers > 0).to(target.dtype)
        self.keys.lerp_(target, step)
        self.values.lerp_(target, step)

    @torch.no_grad()
    def start_from(self, queries: Tensor, features: Tensor, generator: torch.Generator) -> None:
        """Start the slots as clusters of queries ``[n, D]``, given the images' features ``[n, D]``.

        Keys become the mean query of a cluster and values the mean feature. The read compares
        queries with keys by the same projection, so that attention starts on the nearest slots.
        """
        _, cluster = cluster_centres(queries, len(self.keys), generator)
        keys, values, members = self._means(cluster, queries, features)
        self.keys.copy_(torch.where(members > 0, keys, self.keys))
        self.values.copy_(torch.where(members > 0, values, self.values))
        self.to_key.load_state_dict(self.to_query.state_dict())

    @torch.no_grad()
    def write_nearest(self, queries: Tensor, features: Tensor) -> None:
        """Move each slot one step towards the queries ``[n, D]`` that are nearest to it.

        Its value moves towards the features ``[n, D]`` that the network made of these images.
        Slots that are nearest to none stay.
        """
        if self.learnable:
            return
        nearest = (F.normalize(queries, dim=-1) @ F.normalize(self.keys, dim=-1).mT).argmax(-1)
        keys, values, members = self._means(nearest, queries, features)
        step = (1 - self.momentum) * (members > 0).to(keys)
        self.keys.lerp_(keys, step)
        self.values.lerp_(values, step)

    def _means(self, slot: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean of each of two ``rows [n, D]`` per slot ``[M, D]``, and the counts ``[M, 1]``."""
        members = F.one_hot(slot, len(self.keys)).to(rows[0])
        count = members.sum(0).unsqueeze(-1)
        first, second = (members.mT @ each / count.clamp(min=1) for each in rows)
        return first, second, count


def _projection(width: int, generator: torch.Generator | None) -> nn.Linear:
    linear = nn.Linear(width, width)
    nn.init.xavier_uniform_(linear.weight, generator=generator)
    nn.init.zeros_(linear.bias)
    return linear
