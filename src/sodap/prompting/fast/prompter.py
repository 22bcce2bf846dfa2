"""The fast form of a prompter: the same parameters, the same numbers up to rounding."""

from typing import NamedTuple

import torch
from torch import Tensor

from sodap.prompting.fast.folding import FoldedMemory, fold, fold_memory
from sodap.prompting.fast.layers import (
    FusedLayer,
    FusedLayers,
    LogitsBackward,
    LogitsForward,
    logits_backward,
    logits_forward,
)
from sodap.prompting.fast.segments import Competition, Segments
from sodap.prompting.prompter import PromptedLayer, Prompter, PromptPass
from sodap.prompting.routing import Groups, unit


class Partition(NamedTuple):
    """The sets of prompts as tensors of the pool's capacity."""

    groups: Groups
    sets: Segments | Competition
    scale: Tensor  # [capacity], what the prompt of each row is multiplied by


class FastPrompter:
    """Computes the passes of a `Prompter` in a form that is made for speed.

    It has no parameters of its own. Products that all layers share are computed once a pass, the
    backward pass is written by hand, and no shape depends on how far the pool has grown. Under
    torch.compile it falls back to the plain form.
    """

    def __init__(self, prompter: Prompter) -> None:
        self.prompter = prompter
        self.logits: tuple[LogitsForward, LogitsBackward] = (logits_forward, logits_backward)
        self._partition: Partition | None = None

    def compile(self) -> None:
        """Let torch.compile fuse the layers' forward and backward passes from now on."""
        self.logits = (torch.compile(logits_forward), torch.compile(logits_backward))

    def start(self) -> PromptPass:
        """Start a forward pass, see `sodap.prompting.prompter.Prompter.start`."""
        if torch.compiler.is_compiling():
            return self.prompter.start()
        return FastPromptPass(self)

    @property
    def alpha(self) -> float:
        """α of the segmented entmax; 1 stands for softmax."""
        router = self.prompter.router
        return 1.0 if router.softmax else router.alpha

    def partition(self) -> Partition:
        """Return the sets of prompts as tensors, built again only after the pool has changed."""
        groups, like = self.prompter.groups, self.prompter.pool.trained_values
        kept = self._partition
        if kept is None or kept.groups != groups or not _matches(kept.scale, like):
            scales = [
                s for s, size in zip(groups.scales, groups.sizes, strict=True) for _ in range(size)
            ]
            scales += [1.0] * (self.prompter.pool.capacity - groups.size)
            sets = Competition if groups.competing else Segments
            # Not as inference tensors: training steps use them as well.
            with torch.inference_mode(False):
                kept = Partition(
                    groups,
                    sets.of(groups.sizes, len(scales), like.device),
                    torch.tensor(scales, dtype=like.dtype, device=like.device),
                )
            self._partition = kept
        return kept


class FastPromptPass(PromptPass):
    """One forward pass with folded weights; rows of the whole capacity instead of those in use."""

    def __init__(self, fast: FastPrompter) -> None:
        prompter = fast.prompter
        pool, memory = prompter.pool, prompter.memory
        self.fast = fast
        self.partition = fast.partition()
        with torch.autocast(pool.generation.device.type, enabled=False):
            super().__init__(prompter, unit(pool.keys), pool.values)
            # p_F + λ_r p_A: the scale is part of the prompts.
            self.scaled = self.values * self.partition.scale.unsqueeze(-1)
            self.folded_memory = None if memory is None else fold_memory(memory)
        self._up: dict[int, Tensor] = {}  # by adapter
        self._layers: dict[int, FusedLayers] = {}  # by adapter

    def prompt(self, layer: int, query: Tensor) -> PromptedLayer:
        """Compute the prompt of one layer from its CLS token ``[B, D]``."""
        standard = self.prompter.standardise(layer, query)
        if self.folded_memory is None:
            return self._prompt_without_enhancer(layer, query, standard)
        cls, weights, attention = self._fused(layer, self.folded_memory)(layer, standard)
        if standard is not query:
            cls = query + (cls - standard)  # the fused layer adds the prompt to what it reads
        return PromptedLayer(cls, weights, attention)

    def _prompt_without_enhancer(
        self, layer: int, query: Tensor, standard: Tensor
    ) -> PromptedLayer:
        """Without a query enhancer a few products are left, which autograd handles well."""
        adapter = self.prompter.adapter(layer)
        index = layer if len(self.prompter.adapters) > 1 else 0
        if index not in self._up:
            self._up[index] = self.scaled[self._copy(layer)] @ adapter.W_up
        logits = unit(adapter.down(standard)) @ self.keys[self._copy(layer)].mT
        weights, _ = self._layer(heads=1).route(logits)
        return PromptedLayer(torch.addmm(query, weights, self._up[index]), weights, None)

    def _fused(self, layer: int, memory: FoldedMemory) -> FusedLayers:
        """Return the fused layers of an adapter; there is one object per adapter and pass."""
        index = layer if len(self.prompter.adapters) > 1 else 0
        if index not in self._layers:
            adapter, copy = self.prompter.adapter(layer), self._copy(layer)
            weights = fold(adapter, memory, self.context, self.scaled[copy], self.keys[copy])
            assert self.prompter.memory is not None
            fused = self._layer(self.prompter.memory.heads)
            self._layers[index] = FusedLayers(weights, fused)
        return self._layers[index]

    def _layer(self, heads: int) -> FusedLayer:
        """Return the equations of a layer with this pass's sets of prompts."""
        router = self.prompter.router
        return FusedLayer(
            heads, self.partition.sets, self.fast.alpha, router.temperature, *self.fast.logits
        )


def _matches(tensor: Tensor, other: Tensor) -> bool:
    return tensor.device == other.device and tensor.dtype == other.dtype
