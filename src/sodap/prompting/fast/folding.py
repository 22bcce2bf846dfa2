"""Products of weights that are the same for all layers of a pass, computed once.

``z = (q + GELU(LN([q; g; r] W1)) W2) W_down`` and ``q + p W_up`` are chains of matrix products in
which only the query q differs between layers. The memory's projections, the context and the prompts
are multiplied out here, so that few and small products are left for each layer.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sodap.prompting.adapter import Adapter
from sodap.prompting.memory import MemoryBank


class FoldedMemory(NamedTuple):
    """The memory bank with its four projections folded into the slots; H heads, M slots."""

    keys: Tensor  # [H·M, D], to be multiplied with a query, standardised or not
    bias: Tensor  # [H·M]
    values: Tensor  # [H·M, D], as they are added to what is retrieved
    output_bias: Tensor  # [D]
    norm: bool  # whether queries are standardised


def fold_memory(memory: MemoryBank) -> FoldedMemory:
    """Fold the projections of the read into the slots as they are now."""
    heads, width = memory.heads, memory.keys.shape[-1]
    # Cloned, so that a write between forward and backward leaves the graph intact.
    k = memory.split_heads(memory.to_key(memory.keys.clone()))  # [H, M, D/H]
    v = memory.split_heads(memory.to_value(memory.values.clone()))
    k = k / k.shape[-1] ** 0.5
    query_weight = memory.to_query.weight.view(heads, -1, width)  # [H, D/H, D]
    output_weight = memory.split_heads(memory.to_output.weight).mT  # [H, D/H, D]
    bias = k @ memory.to_query.bias.view(heads, -1, 1)  # [H, M, 1]
    return FoldedMemory(
        (k @ query_weight).flatten(0, 1),
        bias.flatten(),
        (v @ output_weight).flatten(0, 1),
        memory.to_output.bias,
        memory.norm,
    )


class FoldedWeights(NamedTuple):
    """All that the layers of a pass multiply with, for an adapter with a query enhancer."""

    query: Tensor  # [D, H·M + 2d]: keys of the memory, W_down, and the part of W1 for the query
    key_sums: Tensor | None  # [H·M], sums of the memory's keys over D; None: queries as they are
    memory_bias: Tensor  # [H·M]
    hidden_bias: Tensor  # [B, d], what the context and the memory's bias add to the hidden layer
    memory: Tensor  # [H·M, d], what each slot adds to the hidden layer
    norm_weight: Tensor  # [d]
    norm_bias: Tensor  # [d]
    keys: Tensor  # [N, d], of length one
    up: Tensor  # [N, D], what each prompt adds to CLS
    inner: Tensor  # W2 W_down [d, d], or W2 [d, D] ...
    outer: Tensor | None = None  # ... and W_down [D, d]

    def detach(self) -> "FoldedWeights":
        """Detach every tensor."""
        return FoldedWeights._make(None if each is None else each.detach() for each in self)


def fold(
    adapter: Adapter, memory: FoldedMemory, context: Tensor, prompts: Tensor, keys: Tensor
) -> FoldedWeights:
    """Fold an adapter with the context ``[B, D]``, scaled prompts and keys (``[N, d]`` each)."""
    enhancer = adapter.enhancer
    assert enhancer is not None
    width, bottleneck = adapter.W_down.shape
    for_query, for_context, for_memory = enhancer.W1.chunk(3)
    # Two narrow products in sequence cost less than one wide product.
    inner, outer = (
        (enhancer.W2 @ adapter.W_down, None)
        if bottleneck < 2 * width
        else (enhancer.W2, adapter.W_down)
    )
    return FoldedWeights(
        query=torch.cat([memory.keys.mT, adapter.W_down, for_query], dim=1),
        key_sums=memory.keys.sum(1) if memory.norm else None,
        memory_bias=memory.bias,
        hidden_bias=torch.addmm(memory.output_bias @ for_memory, context, for_context),
        memory=memory.values @ for_memory,
        norm_weight=enhancer.norm.weight,
        norm_bias=enhancer.norm.bias,
        keys=keys,
        up=prompts @ adapter.W_up,
        inner=inner,
        outer=outer,
    )
