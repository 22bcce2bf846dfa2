"""MoE-Adapters (Yu et al., 2024): experts beside every block of a frozen ViT, routed by domain.

    x  ->  x + MLP(LN x) + Σ_e gate_e · expert_e(x)

`full`     one router per domain; the most used experts are frozen at the end of a stage; at test
           one autoencoder per domain selects the router of an image by its plain feature.
`reduced`  one router and two experts, trained in every stage.

The published method adapts both encoders of CLIP. This one adapts only the image encoder, which may
be any ViT, and its domain selector reads the same frozen ViT instead of a second network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

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
from sodap.methods.parts.experts import ExpertBlock, Gates
from sodap.methods.parts.text_head import clip_text_head
from sodap.methods.registry import register_method
from sodap.prompting import NOTHING, Inspection, Intervention, Selection
from sodap.prompting.inspection import strongest
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT

REDUCED_EXPERTS = 2


class MoeAdaptersConfig(MethodConfig):
    """Defaults are the published sizes."""

    variant: Literal["full", "reduced"] = Field(
        "full",
        description="one router per domain, freezing and a selector, or one router and two experts",
    )
    experts: int = Field(22, ge=1, description="E, experts per block (reduced: always two)")
    top_k: int = Field(
        2, ge=1, description="experts that an image uses per block, and that a stage freezes"
    )
    bottleneck: int = Field(64, ge=1, description="hidden width of an expert")
    scale: float = Field(0.1, gt=0, description="factor on the output of the experts")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout in the hidden layer of an expert")
    selector_width: int = Field(100, ge=1, description="hidden width of an autoencoder")
    selector_steps: int = Field(300, ge=1, description="training steps of an autoencoder")
    head: Literal["linear", "text"] = Field(
        "linear", description="a trained linear head, or CLIP's frozen text encoder"
    )
    prompts: tuple[str, ...] = Field(
        (), description="for head=text: one wording per class, in order"
    )
    text_model: str | None = Field(
        None, description="for head=text: a model of open_clip, such as ViT-B-16"
    )
    text_weights: str | None = Field(None, description="for head=text: a file of CLIP weights")
    faithful: bool = Field(
        False,
        description="as released: routing noise also at test, and one domain per test batch",
    )

    @property
    def expert_count(self) -> int:
        return self.experts if self.variant == "full" else REDUCED_EXPERTS

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.top_k > self.expert_count:
            raise ValueError(f"top_k={self.top_k} is more than {self.expert_count} experts")
        return self


@register_method
class MoeAdapters(Method):
    """A mixture of adapters in a frozen ViT, with one router per domain."""

    name = "moe-adapters"
    family = "adapter"
    trains = "experts, router, head"
    stores = "an autoencoder per domain"
    Config = MoeAdaptersConfig
    # Decay would shrink experts that only the routers of earlier domains choose.
    without_decay = ("blocks.*",)
    routed_to = "expert"

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
        self.selector = DomainSelector(backbone.width, c.selector_width)  # stays empty if reduced
        self.head: nn.Module
        if c.head == "linear":
            self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))
        else:
            self.head = clip_text_head(backbone, classes, c.prompts, c.text_model, c.text_weights)

    # ------------------------------------------------------------------ one batch

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Training images use the router of the current domain."""
        draws = batch.generator if self.training else None
        logits = self.head(self._features(batch.images, noise=draws, dropout=draws))
        return {"ce": F.cross_entropy(logits, batch.labels)}

    def forward(self, images: Tensor) -> Tensor:
        domain, noise = self._domain_of(images), self._noise_at_test(images)
        logits: Tensor = self.head(self._features(images, domain, noise=noise))
        return logits

    def _noise_at_test(self, images: Tensor) -> torch.Generator | None:
        """The same draw for every batch, to be reproducible; None if there is no noise."""
        if not self.config.faithful:
            return None
        return self.randomness.generator("noise at test", device=images.device)

    @torch.no_grad()
    def inspect(self, images: Tensor, intervention: Intervention = NOTHING) -> Inspection:
        """Experts take the place of prompts; those that are not frozen are the active ones."""
        domain, noise = self._domain_of(images), self._noise_at_test(images)
        blocks = list(self._blocks())
        selections: list[Selection] = []

        def adapters(layer: int, tokens: Tensor) -> Tensor:
            block = blocks[layer]
            weights = block.route(tokens[:, 0], domain, noise).dense(block.experts)
            selections.append(Selection(weights, ~block.frozen))
            expert, weight = strongest(intervention.weights(layer, selections[-1]), block.top_k)
            if intervention.fixed is not None and intervention.touches(
                layer
            ):  # the most used experts share the whole weight
                weight = weight / weight.sum(-1, keepdim=True)
            added: Tensor = block(tokens, Gates(expert, weight))
            return added

        features = cast(Tensor, self.backbone(images, parallel=adapters)).float()
        return Inspection(self.head(features), selections, [])

    def _features(
        self,
        images: Tensor,
        domain: Tensor | None = None,
        *,
        noise: torch.Generator | None = None,
        dropout: torch.Generator | None = None,
    ) -> Tensor:
        """CLS features `[B, D]` with the routers `domain` `[B]`, or with the current one."""
        blocks = list(self._blocks())

        def adapters(layer: int, tokens: Tensor) -> Tensor:
            gates = blocks[layer].route(tokens[:, 0], domain, noise)
            added: Tensor = blocks[layer](tokens, gates, dropout)
            return added

        return cast(Tensor, self.backbone(images, parallel=adapters)).float()

    def _domain_of(self, images: Tensor) -> Tensor | None:
        """Selected domain of each image `[B]`; None if there is only one."""
        if self.selector.domains < 2:
            return None
        features = self.frozen_features(images)
        return self.selector.nearest(features, batchwise=self.config.faithful)

    # ------------------------------------------------------------------ stages

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        """Add a router and an autoencoder for the new domain.

        The autoencoder reads plain features, so it can be trained before the stage. Validation
        then selects routers as the test does.
        """
        self.stage = number
        if self.config.variant == "reduced":
            return {}
        if self.selector.domains:
            for block in self._blocks():
                block.router.start_domain()
        features = torch.cat([each for each, _ in train.map(self.frozen_features)])
        generator = self.randomness.generator("selector", number, device=features.device)
        error = self.selector.learn(features, self.config.selector_steps, generator)
        return {"selector_error": error}

    @torch.no_grad()
    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        """Freeze the most used experts of this domain in each block."""
        if self.config.variant == "reduced":
            return {}
        used = sum(choices.sum(0) for choices, _ in train.map(self._choices))  # [L, E]
        assert isinstance(used, Tensor)
        for block, counts in zip(self._blocks(), used, strict=True):
            block.freeze(counts.argsort(descending=True, stable=True)[: self.config.top_k])
        selected = torch.cat(
            [self.selector.nearest(features) for features, _ in val.map(self.frozen_features)]
        )
        return {
            "expert_usage": used.tolist(),  # number of images
            "frozen_experts": [int(block.frozen.sum()) for block in self._blocks()],
            "selected_as_this_domain": float(
                (selected == self.selector.domains - 1).float().mean()
            ),
        }

    def _choices(self, images: Tensor) -> Tensor:
        """Whether each image chooses each expert, without noise: `[B, L, E]`."""
        blocks = list(self._blocks())
        chosen: list[Tensor] = []

        def adapters(layer: int, tokens: Tensor) -> Tensor:
            gates = blocks[layer].route(tokens[:, 0])
            chosen.append(gates.one_hot(blocks[layer].experts).any(1))
            added: Tensor = blocks[layer](tokens, gates)
            return added

        self.backbone(images, parallel=adapters)
        return torch.stack(chosen, 1)

    # ------------------------------------------------------------------ accounting

    def _blocks(self) -> Iterator[ExpertBlock]:
        return (cast(ExpertBlock, block) for block in self.blocks)

    def stored(self) -> list[Asset]:
        if not self.selector.domains:
            return []
        size = tensor_bytes(self.selector)
        return [Asset("autoencoders of the domains' features", "selector", size)]

    def trainable_count(self) -> int:
        head = sum(p.numel() for p in self.head.parameters())
        return head + sum(block.trainable_count() for block in self._blocks())
