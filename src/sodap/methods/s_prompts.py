"""S-Prompts (Wang et al., 2022): prompts and a head for each domain, chosen by the nearest centre.

A domain learns its own prompts and head and nothing of the others. At test the features of the
frozen backbone tell the domain: that of the nearest k-means centre.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sodap.freezing import resize_on_load
from sodap.methods.base import Asset, Batch, LinearHead, MethodConfig, Observations, StageInfo
from sodap.methods.parts.two_phase import TwoPhaseMethod
from sodap.methods.registry import register_method
from sodap.prompting import NOTHING, Inspection, Intervention, Selection
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class SPromptsConfig(MethodConfig):
    """Published sizes."""

    length: int = Field(10, ge=1, le=1000, description="prompt tokens of a domain")
    centres: int = Field(5, ge=1, le=1000, description="k-means centres of a domain")


@register_method
class SPrompts(TwoPhaseMethod):
    """Prompt tokens and a linear head per domain; the nearest centre of the features chooses."""

    name = "s-prompts"
    family = "prompt"
    trains = "prompts and head of the domain"
    stores = "cluster centres"
    Config = SPromptsConfig
    without_decay = ("prompts",)  # as for the other prompt methods

    config: SPromptsConfig
    past_prompts: Tensor  # of all finished domains [T, length, D]
    past_weight: Tensor  # [T, C, D]
    past_bias: Tensor  # [T, C]
    centres: Tensor  # [T, K, D]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c, width = self.config, backbone.width
        self.prompts = nn.Parameter(self._initial_prompts(1))
        self.head = self._initial_head(1)
        for name, shape in (
            ("past_prompts", (c.length, width)),
            ("past_weight", (classes, width)),
            ("past_bias", (classes,)),
            ("centres", (c.centres, width)),
        ):
            self.register_buffer(name, torch.zeros(0, *shape))
        resize_on_load(self, "past_prompts", "past_weight", "past_bias", "centres")

    def _initial_prompts(self, stage: int) -> Tensor:
        """Uniform within ±1/√D `[length, D]`, as released."""
        generator = self.randomness.generator("init prompts", stage)
        bound = 1 / self.backbone.width**0.5
        shape = self.config.length, self.backbone.width
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    def _initial_head(self, stage: int) -> LinearHead:
        generator = self.randomness.generator("init head", stage)
        return LinearHead(self.backbone.width, self.classes, generator)

    @torch.no_grad()
    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        self.prompts.copy_(self._initial_prompts(number))
        self.head.load_state_dict(self._initial_head(number).state_dict())
        return super().begin_stage(number, train)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the domain in training, or else of the domain with the nearest centre."""
        if self.in_training:
            logits: Tensor = self.head(
                self._prompted(images, self.prompts.expand(len(images), -1, -1))
            )
            return logits
        domain = self.nearest(images)
        return self._head_of(domain, self._prompted(images, self.past_prompts[domain]))

    def _head_of(self, domain: Tensor, features: Tensor) -> Tensor:
        """Logits `[B, C]` by the head of the domain `[B]` of each image."""
        with torch.autocast(features.device.type, enabled=False):
            # All heads at once: gathering one for each image would copy it for each image.
            every = torch.einsum("bd,tcd->btc", features.float(), self.past_weight) + self.past_bias
            return every.gather(1, domain.view(-1, 1, 1).expand(-1, 1, self.classes))[:, 0]

    @torch.no_grad()
    def inspect(self, images: Tensor, intervention: Intervention = NOTHING) -> Inspection:
        """The choice of a domain is the routing. Without its prompts an image keeps its head."""
        domains = torch.arange(len(self.centres), device=images.device)
        weights = (self.nearest(images).unsqueeze(1) == domains).float()
        selection = Selection(weights, domains == len(domains) - 1)
        choice = replace(intervention, zero="none").weights(0, selection).argmax(1)
        kept = intervention.weights(0, selection).gather(1, choice.unsqueeze(1)) > 0
        prompts = self.past_prompts[choice] * kept.unsqueeze(2)
        logits = self._head_of(choice, self._prompted(images, prompts))
        return Inspection(logits, [selection], [])

    def _prompted(self, images: Tensor, prompts: Tensor) -> Tensor:
        """CLS feature `[B, D]` of a pass with prompts `[B, length, D]` after CLS."""
        first = self.backbone.prefix_tokens

        def port(layer: int, tokens: Tensor) -> Tensor:
            if layer > 0:
                return tokens
            return torch.cat([tokens[:, :first], prompts.to(tokens), tokens[:, first:]], 1)

        features: Tensor = self.backbone(images, port)
        return features

    def unit_features(self, images: Tensor) -> Tensor:
        """Features of the frozen backbone without prompts, of length 1: `[B, D]`."""
        return F.normalize(self.frozen_features(images))

    def nearest(self, images: Tensor) -> Tensor:
        """Domain of each image `[B]`, counted from 0, by sums of |x - c| as in the release."""
        features = self.unit_features(images)
        with torch.autocast(images.device.type, enabled=False):
            away = torch.cdist(features, self.centres.flatten(0, 1), p=1)
        return away.view(len(away), *self.centres.shape[:2]).amin(2).argmin(1)

    @torch.no_grad()
    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        features = torch.cat([features for features, _ in train.map(self.unit_features)])
        for name, new in (
            ("past_prompts", self.prompts),
            ("past_weight", self.head.weight),
            ("past_bias", self.head.bias),
            ("centres", self._cluster(features)),
        ):
            kept: Tensor = getattr(self, name)
            setattr(self, name, torch.cat([kept, new.detach().to(kept)[None]]))
        self.finish(number)
        return {}

    def _cluster(self, features: Tensor) -> Tensor:
        """K-means centres `[K, D]`; with fewer images than centres some are equal."""
        from sklearn.cluster import KMeans  # slow to import

        count = min(self.config.centres, len(features))
        seed = self.randomness.number("centres", self.stage) % 2**32
        found = KMeans(count, n_init=1, random_state=seed).fit(features.cpu().double().numpy())
        centres = torch.from_numpy(found.cluster_centers_)
        return centres[torch.arange(self.config.centres) % count]

    def stored(self) -> list[Asset]:
        if not len(self.centres):
            return []
        return [Asset("k-means centres of the features", "statistics", self.centres.nbytes)]
