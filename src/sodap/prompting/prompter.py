"""The prompter: before every block of a ViT, adds to the CLS token the prompt it asks for."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from sodap.prompting.adapter import Adapter, Way
from sodap.prompting.losses import diversity_loss, norm_loss
from sodap.prompting.memory import MemoryBank
from sodap.prompting.pool import Merge, PromptPool
from sodap.prompting.routing import Combination, Partition, Router, Routing, Selection, unit
from sodap.prompting.segments import Segments
from sodap.prompting.visit import Look, LookBack, Rules, Visits, look, look_back

Context = Literal["cls", "patch_mean"]
PerLayer = Literal["none", "adapters", "all"]


class Prompter(nn.Module):
    """Everything of the method that is learned inside the backbone.

    ``start()`` gives an object for one forward pass, which the backbone calls as
    ``(layer, tokens) -> tokens`` before each of its blocks.

    ``context="cls"`` is the paper's global context, the CLS token after embedding. It is the same
    for every image, and so is the routing of layer 0; ``"patch_mean"``, the mean of the patch
    tokens after embedding, does depend on the image. The first ``prefix_tokens`` tokens are CLS
    and registers, no patches.

    ``per_layer`` gives each layer its own enhancer and projections (``"adapters"``) or its own
    pool as well (``"all"``). The memory is always shared.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        heads: int,
        *,
        pool_size: int = 60,
        capacity: int = 256,
        bottleneck: int = 512,
        memory_slots: int = 9,
        memory_momentum: float = 0.99,
        memory_learnable: bool = False,
        query_enhancer: bool = True,
        context: Context = "cls",
        prefix_tokens: int = 1,
        alpha: float = 1.5,
        temperature: float = 1.5,
        residual: float = 0.1,
        selection: Selection = "entmax",
        combination: Combination = "residual",
        merge: Merge = "paper",
        per_layer: PerLayer = "none",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check("context", context, get_args(Context))
        _check("selection", selection, get_args(Selection))
        _check("combination", combination, get_args(Combination))
        _check("merge", merge, get_args(Merge))
        _check("per_layer", per_layer, get_args(PerLayer))
        if merge == "rescale" and combination == "joint":
            raise ValueError("a joint routing has no residual scale for merge='rescale' to keep")
        self.depth = depth
        self.context = context
        self.prefix_tokens = prefix_tokens
        self.looks: tuple[Look, LookBack] = (look, look_back)
        self._partition: Partition | None = None
        self._partitioned: tuple[int, int] | None = None
        self.router = Router(selection, combination, alpha, temperature, residual)
        self.pool = PromptPool(
            bottleneck,
            size=pool_size,
            capacity=capacity,
            copies=depth if per_layer == "all" else 1,
            merge=merge,
            residual=residual,
            generator=generator,
        )
        self.adapters = nn.ModuleList(
            Adapter(width, bottleneck, query_enhancer=query_enhancer, generator=generator)
            for _ in range(1 if per_layer == "none" else depth)
        )
        self.memory = (
            MemoryBank(
                width,
                slots=memory_slots,
                heads=heads,
                momentum=memory_momentum,
                learnable=memory_learnable,
                generator=generator,
            )
            if query_enhancer
            else None
        )

    def start(self) -> "PromptPass":
        """A fresh record for one forward pass through the backbone."""
        return PromptPass(self)

    def adapter(self, layer: int) -> Adapter:
        adapter = self.adapters[layer if len(self.adapters) > 1 else 0]
        assert isinstance(adapter, Adapter)
        return adapter

    def global_context(self, tokens: Tensor) -> Tensor:
        """g from the tokens right after embedding: ``[B, 1+S, D] -> [B, D]``."""
        if self.context == "cls":
            return tokens[:, 0]
        return tokens[:, self.prefix_tokens :].mean(1)

    def partition(self) -> Partition:
        """Who is routed with whom, made anew only after the pool has changed.

        On a GPU a later one takes the place of an earlier one in memory, where a recorded pass
        reads it. Whoever keeps one for longer than a pass needs a copy (`Partition.copy`).
        """
        generation = self.pool.generation
        if torch.compiler.is_compiling() or generation.is_inference():  # which counts no changes
            return self.router.partition(self.pool.sets)
        now = generation.data_ptr(), generation._version
        kept = self._partition
        if kept is None or self._partitioned != now:
            with torch.inference_mode(False), torch.no_grad():
                found = self.router.partition(self.pool.sets)
                if generation.is_cuda and torch.cuda.is_current_stream_capturing():
                    return found  # which is no number yet
                if kept is None or not (kept.active.is_cuda and generation.is_cuda):
                    kept = found
                for old, new in zip(kept.tensors(), found.tensors(), strict=True):
                    old.copy_(new)
            self._partition, self._partitioned = kept, now
        return kept

    def rules(self, segments: Segments) -> Rules:
        """How layers visit the pool while it is partitioned like this."""
        router = self.router
        alpha = router.alpha if router.selection == "entmax" else 1.0
        assert self.memory is not None
        return Rules(self.memory.heads, segments, alpha, router.temperature, *self.looks)

    def compile_visits(self) -> None:
        """Let torch.compile fuse a visit, both ways, from now on."""
        self.looks = (torch.compile(look), torch.compile(look_back))

    def usage(self, pass_: "PromptPass") -> Tensor:
        """Batch mean of the weights over the whole pool, one distribution per layer: ``[L, N]``."""
        weights = torch.stack([routing.weights for routing in pass_.routings])  # [L, B, N]
        return weights.mean(1) / pass_.partition.sets

    def diversity(self, pass_: "PromptPass") -> Tensor:
        """L_div over the active prompts, which in stage 1 are all."""
        return diversity_loss(pass_.values.squeeze(0), self.usage(pass_), self.pool.active)

    def norm(self) -> Tensor:
        """L_norm over the active prompts."""
        return norm_loss(self.pool.values, self.pool.active)

    def remember(self, pass_: "PromptPass") -> None:
        """Write the pass into the memory, but for layer 0, whose query is a constant."""
        if self.memory is not None and len(pass_.queries) > 1:
            self.memory.write(pass_.queries[1:], pass_.attentions[1:])

    def expand(self, count: int, generator: torch.Generator | None = None) -> int:
        """Freeze the active prompts and add ``count`` new ones; how many found room."""
        found_room = self.pool.expand(count, generator)
        self.partition()  # for passes that are recorded already
        return found_room

    def shared_parameters(self) -> list[nn.Parameter]:
        """What old and new prompts have in common: enhancer, projections and memory."""
        pool = set(self.pool.parameters())
        return [parameter for parameter in self.parameters() if parameter not in pool]

    def trainable_count(self) -> int:
        """Numbers that learn at this stage: of the pool, only its active rows."""
        copies, _, bottleneck = self.pool.trained_keys.shape
        shared = sum(p.numel() for p in self.shared_parameters() if p.requires_grad)
        return shared + 2 * copies * self.pool.active_count * bottleneck


class PromptPass:
    """One forward pass: what the layers were given, and what they selected."""

    def __init__(self, prompter: Prompter) -> None:
        self.prompter = prompter
        pool, memory = prompter.pool, prompter.memory
        # What is the same for all layers is computed here, once.
        with torch.autocast(pool.generation.device.type, enabled=False):
            self.keys = unit(pool.keys)  # [copies, N, d]
            self.values = pool.values  # [copies, N, d]
            self.partition = prompter.partition()
            # p_F + λ_r p_A: what a prompt counts for is part of it.
            self.prompts = self.values * self.partition.share.unsqueeze(-1)
            self.recall = None if memory is None else memory.recall()
        self.context: Tensor  # [B, D], from layer 0 on
        self.ways: dict[int, Way] = {}  # by adapter
        self.visits: dict[int, Visits] = {}  # by adapter
        self.routings: list[Routing] = []
        self.queries: list[Tensor] = []  # [B, D] each, detached
        self.attentions: list[Tensor] = []  # [B, H, M] each, detached; none without a memory

    def __call__(self, layer: int, tokens: Tensor) -> Tensor:
        """The tokens ``[B, 1+S, D]`` that block ``layer`` is to see."""
        cls = self.cls(layer, tokens)
        return torch.cat([cls.to(tokens.dtype).unsqueeze(1), tokens[:, 1:]], dim=1)

    def cls(self, layer: int, tokens: Tensor) -> Tensor:
        """The CLS token ``[B, D]`` that block ``layer`` is to see instead of its own."""
        if layer != len(self.routings):
            raise ValueError(f"layer {layer} was called where {len(self.routings)} is next")
        # The prompter sees one token per image, so it can afford its own full precision.
        with torch.autocast(tokens.device.type, enabled=False):
            return self._prompt(layer, tokens)

    def _prompt(self, layer: int, tokens: Tensor) -> Tensor:
        prompter = self.prompter
        dtype = prompter.adapter(layer).W_down.dtype
        if layer == 0:
            self.context = prompter.global_context(tokens).to(dtype)
        query = tokens[:, 0].to(dtype)
        self.queries.append(query.detach())
        if self.recall is None or torch.compiler.is_compiling():
            return self._step_by_step(layer, query)
        prompted, weights, attention = self._visits(layer)(layer, query)
        self.routings.append(Routing(weights, self.partition))
        self.attentions.append(attention)
        return prompted

    def _step_by_step(self, layer: int, query: Tensor) -> Tensor:
        """The plain form of a visit, which autograd and compilers can look into."""
        way = self._way(layer)
        attention = None if self.recall is None else self.recall.attend(query)
        compressed = way.compress(query, attention)
        routing = self.prompter.router.route(
            compressed, self.keys[self._copy(layer)], self.partition
        )
        self.routings.append(routing)
        if attention is not None:
            self.attentions.append(attention.detach())
        return way.inject(query, routing.weights)

    def _copy(self, layer: int) -> int:
        return layer if len(self.keys) > 1 else 0

    def _way(self, layer: int) -> Way:
        """Of an adapter that all layers share there is one."""
        index = layer if len(self.prompter.adapters) > 1 else 0
        if index not in self.ways:
            adapter = self.prompter.adapter(layer)
            prompts = self.prompts[self._copy(layer)].to(adapter.W_up.dtype)
            self.ways[index] = adapter.way(self.context, self.recall, prompts)
        return self.ways[index]

    def _visits(self, layer: int) -> Visits:
        """Of an adapter that all layers share there is one series of visits."""
        index = layer if len(self.prompter.adapters) > 1 else 0
        if index not in self.visits:
            assert self.recall is not None
            adapter, copy = self.prompter.adapter(layer), self._copy(layer)
            prompts = self.prompts[copy].to(adapter.W_up.dtype)
            maps = adapter.maps(self.context, self.recall, prompts, self.keys[copy])
            self.visits[index] = Visits(maps, self.prompter.rules(self.partition.segments))
        return self.visits[index]


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is one of {', '.join(allowed)}, not {value!r}")
