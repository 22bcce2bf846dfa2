"""The prompter: adds a prompt to the CLS token before every block of a ViT, section 3.1."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sodap.prompting.adapter import Adapter
from sodap.prompting.clustering import cluster_centres
from sodap.prompting.inspection import NOTHING, Intervention, Selection
from sodap.prompting.losses import diversity_loss, norm_loss
from sodap.prompting.memory import MemoryBank
from sodap.prompting.options import PromptingOptions
from sodap.prompting.pool import PromptPool
from sodap.prompting.routing import Groups, Router, Routing
from sodap.prompting.standardising import Standardiser


class PromptedLayer(NamedTuple):
    """What one layer's prompt gives."""

    cls: Tensor  # [B, D], the CLS token that the block gets
    weights: Tensor  # [B, N], routing weights
    attention: Tensor | None  # [B, H, M], attention to the memory bank
    retrieved: Tensor | None = None  # [B, D], what it read there; only of the plain form


class Prompter(nn.Module):
    """Everything of the method that is learned inside the backbone.

    The memory bank is shared by all layers. So are the adapter and the pool, unless
    ``options.per_layer`` gives each layer its own. The first ``prefix_tokens`` tokens of an image
    are CLS and registers, the others are patches.
    """

    def __init__(
        self,
        options: PromptingOptions,
        *,
        width: int,
        depth: int,
        heads: int,
        prefix_tokens: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.options = options
        self.depth = depth
        self.prefix_tokens = prefix_tokens
        self.router = Router(options)
        self.pool = PromptPool(
            options.bottleneck,
            size=options.pool_size,
            capacity=options.capacity,
            copies=depth if options.per_layer == "all" else 1,
            # Prompts that are routed as one set have no residual scale to preserve.
            merge="paper" if self.router.joint else options.merge,
            residual=options.residual,
            generator=generator,
        )
        self.adapters = nn.ModuleList(
            Adapter(
                width,
                options.bottleneck,
                query_enhancer=options.query_enhancer,
                generator=generator,
            )
            for _ in range(1 if options.per_layer == "none" else depth)
        )
        self.memory = (
            MemoryBank(
                width,
                slots=options.memory_slots,
                heads=heads,
                momentum=options.memory_momentum,
                norm=options.memory_norm,
                learnable=options.memory_write == "learned",
                generator=generator,
            )
            if options.query_enhancer
            else None
        )

        # Kinds: the query of each layer, the context, the features.
        self.standardiser = (
            Standardiser(depth + 2, width) if options.queries == "standardised" else None
        )

    def start(self, intervention: Intervention = NOTHING) -> "PromptPass":
        """Start a forward pass: an object that the backbone calls before each of its blocks.

        An intervention changes this pass only, to measure what a part does.
        """
        size = self.pool.size
        keys, values = self.pool.keys[:, :size], self.pool.values[:, :size]
        return PromptPass(self, keys, values, intervention)

    def prompt(
        self,
        layer: int,
        query: Tensor,
        context: Tensor,
        keys: Tensor,
        values: Tensor,
        intervention: Intervention = NOTHING,
    ) -> PromptedLayer:
        """Equations (1) to (7) for one layer.

        ``query`` and ``context`` are ``[B, D]``, the layer's ``keys`` and ``values`` ``[N, d]``.
        """
        adapter, attention, retrieved = self.adapter(layer), None, None
        standard = enhanced = self.standardise(layer, query)
        if self.memory is not None and adapter.enhancer is not None:
            slots = (intervention.slots(layer, s) for s in (self.memory.keys, self.memory.values))
            retrieved, attention = self.memory(standard, *slots)  # (1)
            enhanced = adapter.enhancer(standard, context, retrieved)  # (2), (3)
        z = adapter.down(enhanced)
        routing = self.router.route(z, keys, self.groups)  # (4), (5)
        used = intervention.weights(layer, Selection(routing.weights, self.active))
        prompt = Routing(used, routing.groups).prompt(values)  # (6)
        cls = adapter.inject(query, prompt)  # (7)
        return PromptedLayer(cls, routing.weights, attention, retrieved)

    def adapter(self, layer: int) -> Adapter:
        """Return the adapter that ``layer`` uses."""
        adapter = self.adapters[layer if len(self.adapters) > 1 else 0]
        assert isinstance(adapter, Adapter)
        return adapter

    @property
    def active(self) -> Tensor:
        """Which of the prompts in use are A, ``[N]``."""
        return self.pool.active[: self.pool.size]

    @property
    def groups(self) -> Groups:
        """The sets of prompts that are routed separately at this stage."""
        return self.router.groups(self.pool.generations)

    def global_context(self, tokens: Tensor) -> Tensor:
        """Compute g from the tokens right after embedding: ``[B, 1+S, D] -> [B, D]``."""
        cls = self.options.context == "cls"
        context = tokens[:, 0] if cls else tokens[:, self.prefix_tokens :].mean(1)
        return self.standardise(self.depth, context)

    def standardise(self, kind: int, rows: Tensor) -> Tensor:
        """Standardise ``[B, D]``: the query of layer ``kind``, or the context (``depth``)."""
        return rows if self.standardiser is None else self.standardiser(kind, rows)

    def usage(self, prompts: "PromptPass") -> Tensor:
        """Batch mean u of the weights, one distribution over the pool per layer: ``[L, N]``."""
        weights = torch.stack(prompts.weights)  # [L, B, N]
        return weights.mean(1) / len(self.groups.sizes)

    def diversity(self, prompts: "PromptPass") -> Tensor:
        """L_div over the active prompts, which in stage 1 are all prompts."""
        active = self.pool.active[: prompts.values.shape[1]]
        return diversity_loss(prompts.values.squeeze(0), self.usage(prompts), active)

    def norm(self) -> Tensor:
        """L_norm over the active prompts."""
        return norm_loss(self.pool.values, self.pool.active)

    def remember(self, prompts: "PromptPass", features: Tensor) -> None:
        """Write a pass and its features ``[B, D]`` to the memory bank.

        Layer 0 is left out, because its query is a constant.
        """
        if self.memory is None or len(prompts.queries) == 1:
            return
        queries = [self.standardise(layer, q) for layer, q in enumerate(prompts.queries)][1:]
        if self.options.memory_assignment == "nearest":
            features = self.standardise(self.depth + 1, features)
            self.memory.write_nearest(torch.cat(queries), features.repeat(len(queries), 1))
        else:
            self.memory.write(queries, prompts.attentions[1:])

    @torch.no_grad()
    def start_memory(self, queries: Tensor, features: Tensor, generator: torch.Generator) -> None:
        """Start the slots from the raw queries ``[n, L, D]`` and features ``[n, D]`` of images."""
        if self.memory is None:
            return
        layers = [self.standardise(layer, queries[:, layer]) for layer in range(1, self.depth)]
        features = self.standardise(self.depth + 1, features)
        self.memory.start_from(torch.cat(layers), features.repeat(len(layers), 1), generator)

    @torch.no_grad()
    def start_keys(self, queries: Tensor, context: Tensor, generator: torch.Generator) -> None:
        """Start the keys of A as clusters of compressed queries, beyond what F covers.

        ``queries`` are raw, ``[n, L, D]``; ``context`` is g, ``[n, D]``.
        """
        compressed = [
            self._compress(layer, queries[:, layer], context) for layer in range(self.depth)
        ]
        pool, copies = self.pool, len(self.pool.trained_keys)
        for copy in range(copies):
            # The query of layer 0 is a constant, so that a shared pool does not need keys for it.
            rows = compressed[copy] if copies > 1 else torch.cat(compressed[1:])
            known = pool.keys[copy, : pool.frozen_count]
            centres, _ = cluster_centres(rows, pool.active_count, generator, known)
            pool.start_keys(copy, centres)

    def _compress(self, layer: int, query: Tensor, context: Tensor) -> Tensor:
        """Compressed query z of one layer, ``[B, D] -> [B, d]``."""
        adapter, standard = self.adapter(layer), self.standardise(layer, query)
        if self.memory is None or adapter.enhancer is None:
            return adapter.down(standard)
        return adapter.down(adapter.enhancer(standard, context, self.memory(standard)[0]))

    def shared_parameters(self) -> list[nn.Parameter]:
        """Parameters that old and new prompts share: enhancer, projections, memory reader."""
        pool = set(self.pool.parameters())
        return [parameter for parameter in self.parameters() if parameter not in pool]

    def trainable_count(self) -> int:
        """Number of trainable scalars at this stage: of the pool, only its active rows."""
        copies, _, bottleneck = self.pool.trained_keys.shape
        shared = sum(p.numel() for p in self.shared_parameters() if p.requires_grad)
        return shared + 2 * copies * self.pool.active_count * bottleneck


class PromptPass:
    """One forward pass: the prompts of each layer, and what they were computed from."""

    def __init__(
        self,
        prompter: Prompter,
        keys: Tensor,
        values: Tensor,
        intervention: Intervention = NOTHING,
    ) -> None:
        self.prompter = prompter
        self.intervention = intervention
        self.keys = keys  # [copies, N, d]
        self.values = values  # [copies, N, d]
        self.context: Tensor  # [B, D], from layer 0 on
        self.queries: list[Tensor] = []  # [B, D] per layer, detached
        self.weights: list[Tensor] = []  # [B, N] per layer
        self.attentions: list[Tensor] = []  # [B, H, M] per layer, detached; empty without a memory
        self.retrieved: list[Tensor] = []  # [B, D] per layer, detached; of the plain form

    def __call__(self, layer: int, tokens: Tensor) -> Tensor:
        """Return the tokens ``[B, 1+S, D]`` that block ``layer`` gets."""
        cls = self.cls(layer, tokens)
        return torch.cat([cls.to(tokens.dtype).unsqueeze(1), tokens[:, 1:]], dim=1)

    def cls(self, layer: int, tokens: Tensor) -> Tensor:
        """Return the CLS token ``[B, D]`` that block ``layer`` gets instead of its own."""
        if layer != len(self.weights):
            raise ValueError(f"layer {layer} was called where {len(self.weights)} is next")
        # One token per image is cheap: prompts are always computed in full precision.
        with torch.autocast(tokens.device.type, enabled=False):
            dtype = self.values.dtype
            if layer == 0:
                self.context = self.prompter.global_context(tokens).to(dtype)
            query = tokens[:, 0].to(dtype)
            prompted = self.prompt(layer, query)
        self.queries.append(query.detach())
        self.weights.append(prompted.weights)
        if prompted.attention is not None:
            self.attentions.append(prompted.attention.detach())
        if prompted.retrieved is not None:
            self.retrieved.append(prompted.retrieved.detach())
        return prompted.cls

    def prompt(self, layer: int, query: Tensor) -> PromptedLayer:
        """Compute the prompt of one layer from its CLS token ``[B, D]``."""
        keys, values = self.keys[self._copy(layer)], self.values[self._copy(layer)]
        return self.prompter.prompt(layer, query, self.context, keys, values, self.intervention)

    def _copy(self, layer: int) -> int:
        """Index of the pool that ``layer`` uses."""
        return layer if len(self.keys) > 1 else 0

    @property
    def selections(self) -> list[Selection]:
        """What each layer's images select of the prompts in use."""
        active = self.prompter.active
        return [Selection(weights[:, : len(active)], active) for weights in self.weights]

    @property
    def routings(self) -> list[Routing]:
        """Routing of each layer over the prompts in use."""
        groups = self.prompter.groups
        return [Routing(weights[:, : groups.size], groups) for weights in self.weights]
