"""MoE-Adapters: experts beside every block of a frozen ViT, and a router for each domain.

    x  ->  x + MLP(LN x) + Σ_e gate_e · expert_e(x)

`full`     a router a domain; the most used experts are frozen when a domain ends; at test an
           autoencoder a domain tells from the plain feature whose router an image gets.
`reduced`  one router and two experts that go on training: a mixture that is free to forget.

The published method lives in both encoders of CLIP. This one lives in the image encoder, which may
be any ViT, and its selector reads the same frozen ViT instead of a second network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.methods.base import (
    Asset,
    Batch,
    LinearHead,
    Method,
    MethodConfig,
    Observations,
    StageInfo,
    tensor_bytes,
)
from sodap.methods.parts.domain_selector import DomainSelector
from sodap.methods.parts.experts import ExpertBlock
from sodap.methods.parts.text_head import clip_text_head
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

REDUCED_EXPERTS = 2


class MoeAdaptersConfig(MethodConfig):
    """Sizes are the published ones."""

    variant: Literal["full", "reduced"] = Field(
        "full", description="a router a domain, freezing and a selector, or one router, two experts"
    )
    experts: int = Field(22, ge=1, description="E: experts a block (reduced: always two)")
    top_k: int = Field(
        2, ge=1, description="experts an image uses in a block, and experts frozen a stage"
    )
    bottleneck: int = Field(64, ge=1, description="width of an expert's middle")
    scale: float = Field(0.1, gt=0, description="factor on what the experts add")
    dropout: float = Field(0.1, ge=0, lt=1, description="of an expert's middle, in training")
    selector_width: int = Field(100, ge=1, description="width of an autoencoder's middle")
    selector_steps: int = Field(300, ge=1, description="steps an autoencoder is trained for")
    head: Literal["linear", "text"] = Field(
        "linear", description="a trained linear head, or CLIP's frozen text encoder (open_clip)"
    )
    prompts: tuple[str, ...] = Field((), description="for head=text: one wording a class, in order")
    text_model: str | None = Field(None, description="for head=text: open_clip's name, ViT-B-16")
    text_weights: str | None = Field(None, description="for head=text: a file of CLIP weights")
    faithful: bool = Field(
        False,
        description="as released: routing noise at test too, and one domain for a whole batch",
    )

    @property
    def expert_count(self) -> int:
        return self.experts if self.variant == "full" else REDUCED_EXPERTS

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.top_k > self.expert_count:
            raise ValueError(f"top_k={self.top_k} cannot be more than {self.expert_count} experts")
        return self


@register_method
class MoeAdapters(Method):
    """A mixture of adapters in a frozen ViT, routed by domain, with the used ones frozen."""

    name = "moe-adapters"
    family = "adapter"
    trains = "experts, router, head"
    stores = "an autoencoder a domain"
    Config = MoeAdaptersConfig

    config: MoeAdaptersConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c = self.config
        generator = randomness.generator("init experts")
        self.blocks = nn.ModuleList(
            ExpertBlock(
                backbone.width,
                experts=c.expert_count,
                top_k=c.top_k,
                bottleneck=c.bottleneck,
                scale=c.scale,
                dropout=c.dropout,
                generator=generator,
            )
            for _ in range(backbone.depth)
        )
        self.selector = DomainSelector(backbone.width, c.selector_width)  # reduced: stays empty
        self.head: nn.Module
        if c.head == "linear":
            self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))
        else:
            self.head = clip_text_head(backbone, classes, c.prompts, c.text_model, c.text_weights)

    # ------------------------------------------------------------------ one batch

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Training knows its domain, so the current router takes every image."""
        draws = batch.generator if self.training else None
        logits = self.head(self._features(batch.images, noise=draws, dropout=draws))
        return {"ce": F.cross_entropy(logits, batch.labels)}

    def forward(self, images: Tensor) -> Tensor:
        noise = None
        if self.config.faithful:  # the same for every batch, so that a run can be repeated
            noise = self.randomness.generator("noise at test", device=images.device)
        logits: Tensor = self.head(self._features(images, self._domain_of(images), noise=noise))
        return logits

    def _features(
        self,
        images: Tensor,
        domain: Tensor | None = None,
        *,
        noise: torch.Generator | None = None,
        dropout: torch.Generator | None = None,
    ) -> Tensor:
        """CLS features `[B, D]`, routed as in `domain` `[B]`; without one, by the newest router."""
        blocks = list(self._blocks())

        def beside(layer: int, tokens: Tensor) -> Tensor:
            gates = blocks[layer].route(tokens[:, 0], domain, noise)
            added: Tensor = blocks[layer](tokens, gates, dropout)
            return added

        return cast(Tensor, self.backbone(images, beside=beside)).float()

    def _domain_of(self, images: Tensor) -> Tensor | None:
        """The domain `[B]` whose autoencoder knows each image best; None while there is one."""
        if self.selector.domains < 2:
            return None
        features = self._plain_features(images)
        return self.selector.nearest(features, batchwise=self.config.faithful)

    @torch.no_grad()
    def _plain_features(self, images: Tensor) -> Tensor:
        """`[B, D]` of the backbone without experts: the same in every stage."""
        return cast(Tensor, self.backbone(images)).float()

    # ------------------------------------------------------------------ stages

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        """Meet the domain: a router of its own, and an autoencoder that knows it.

        The autoencoder reads plain features, so it can come before training: validation then
        selects routers just as the test will.
        """
        self.stage = number
        if self.config.variant == "reduced":
            return {}
        if self.selector.domains:
            for block in self._blocks():
                block.router.start_domain()
        features = torch.cat([self._plain_features(images) for images, _ in train])
        generator = self.randomness.generator("selector", number, device=features.device)
        error = self.selector.learn(features, self.config.selector_steps, generator)
        return {"selector_error": error}

    @torch.no_grad()
    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        """Freeze the experts that this domain uses most, block by block."""
        if self.config.variant == "reduced":
            return {}
        used = self._usage(train)
        for block, counts in zip(self._blocks(), used, strict=True):
            block.freeze(counts.argsort(descending=True, stable=True)[: self.config.top_k])
        guesses = torch.cat([self.selector.nearest(self._plain_features(x)) for x, _ in val])
        return {
            "expert_usage": used.tolist(),  # [L, E], images
            "frozen_experts": [int(block.frozen.sum()) for block in self._blocks()],
            "selected_as_this_domain": float((guesses == self.selector.domains - 1).float().mean()),
        }

    def _usage(self, batches: Observations) -> Tensor:
        """How many images choose each expert `[L, E]`, without noise and with the best weights."""
        blocks = list(self._blocks())
        used = [torch.zeros_like(block.frozen, dtype=torch.long) for block in blocks]

        def beside(layer: int, tokens: Tensor) -> Tensor:
            gates = blocks[layer].route(tokens[:, 0])
            used[layer] += gates.one_hot(blocks[layer].experts).sum((0, 1))
            added: Tensor = blocks[layer](tokens, gates)
            return added

        for images, _ in batches:
            self.backbone(images, beside=beside)
        return torch.stack(used)

    # ------------------------------------------------------------------ what others ask

    def _blocks(self) -> Iterator[ExpertBlock]:
        return (cast(ExpertBlock, block) for block in self.blocks)

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Decay on a linear head only: it would wear down experts that no image of this stage
        chooses but that routers of earlier domains rely on."""
        free = [*self.blocks.parameters(), *(p for p in self.head.parameters() if p.ndim < 2)]
        decayed = [p for p in self.head.parameters() if p.ndim >= 2]
        return [
            {"params": decayed, "lr": lr, "weight_decay": weight_decay},
            {"params": free, "lr": lr, "weight_decay": 0.0},
        ]

    def stored(self) -> list[Asset]:
        if not self.selector.domains:
            return []
        size = tensor_bytes(self.selector)
        return [Asset("autoencoders of the domains' features", "selector", size)]

    def trainable_count(self) -> int:
        head = sum(p.numel() for p in self.head.parameters())
        return head + sum(block.trainable_count() for block in self._blocks())
