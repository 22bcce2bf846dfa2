"""DUCT (Zhou et al., 2025): merged networks and merged heads of all domains.

stage       the pretrained network is fine-tuned with a new head
network     φ = φ₀ + α Σ_t s_t (φ_t - φ₀), with s_t the similarity of class means by φ₀ and φ_t
new head    trained again on features of the merged network
old heads   (1 - β) W + β Ŵ, where Ŵ is the new head transported to the old domain's classes
answer      the largest logit of a class over the heads of all domains
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sodap.backbones.lora import full_precision
from sodap.freezing import resize_on_load
from sodap.methods.base import Asset, Batch, MethodConfig, Observations, StageInfo
from sodap.methods.parts.head_fitting import BATCH, fit_head
from sodap.methods.parts.transport import transport_plan
from sodap.methods.parts.two_phase import TwoPhaseMethod
from sodap.methods.registry import register_method
from sodap.preserving import ClassStatistics
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT

SCALE = 20.0
"""Factor on cosines; the same for all heads, so that their logits can be compared."""


class DUCTConfig(MethodConfig):
    """Strengths of the two mergers, and the training of the new head."""

    network_lr: float = Field(
        0.01, gt=0, le=1, description="learning rate of the network as a fraction of the head's"
    )
    merge: float = Field(0.5, ge=0, le=1, description="α, share of each domain's change of weights")
    head_merge: float = Field(
        0.5, ge=0, le=1, description="β, share of the transported head in the heads of old domains"
    )
    head_epochs: int = Field(
        5, ge=0, le=1000, description="epochs of the new head on the merged network"
    )


@register_method
class DUCT(TwoPhaseMethod):
    """A network merged from fine-tuned copies, and one cosine head per domain, also merged."""

    name = "duct"
    family = "merging"
    trains = "all weights, then the head"
    stores = "class means"
    Config = DUCTConfig
    without_decay = ("network.*",)  # decay would pull away from the pretrained weights

    config: DUCTConfig
    change: Tensor  # α Σ s_t (φ_t - φ₀), all weights in one row [P]
    heads: Tensor  # of finished domains [T, C, D]
    means: Tensor  # class means of finished domains, by the pretrained network [T, C, D]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.network = backbone.trainable_copy()
        self.weight = nn.Parameter(self._initial_head(1))
        size = sum(each.numel() for each in self.network.parameters())
        self.register_buffer("change", torch.zeros(size))
        for name in ("heads", "means"):
            self.register_buffer(name, torch.zeros(0, classes, backbone.width))
        resize_on_load(self, "heads", "means")

    def _initial_head(self, stage: int) -> Tensor:
        generator = self.randomness.generator("init head", stage)
        return 0.02 * torch.randn(self.classes, self.backbone.width, generator=generator)

    # ------------------------------------------------------------------ one batch

    def features(self, images: Tensor) -> Tensor:
        """Features of the network in training, or of the merged one: `[B, D]`."""
        features: Tensor = self.network(images)
        return features.float()

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the new head in a stage; after it, the largest of all heads for each class."""
        features = self.features(images)
        if self.in_training:
            return self._cosine(features)
        with torch.autocast(images.device.type, enabled=False):
            unit = F.normalize(self.heads, dim=-1)
            every = torch.einsum("bd,tcd->tbc", F.normalize(features), unit)
            # A head knows nothing of a class that its domain has no image of: below all cosines.
            every = every.where(_present(self.means).unsqueeze(1), -1.1)
            return SCALE * every.amax(0)

    def _cosine(self, features: Tensor) -> Tensor:
        """Logits of the new head: `[B, D] -> [B, C]`."""
        with torch.autocast(features.device.type, enabled=False):
            return SCALE * F.linear(F.normalize(features), F.normalize(self.weight))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}

    # ------------------------------------------------------------------ stages

    @torch.no_grad()
    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        """Start at the pretrained weights, with a new head."""
        self._set_weights(self._pretrained())
        self.weight.copy_(self._initial_head(number))
        return super().begin_stage(number, train)

    @torch.no_grad()
    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        before = self._class_statistics(train, pretrained=True)
        after = self._class_statistics(train, pretrained=False)
        seen = before.count > 0
        cosines = F.cosine_similarity(before.mean[seen], after.mean[seen])
        similarity = float(cosines.mean())
        start = self._pretrained()
        self.change += self.config.merge * similarity * (self._weights() - start)
        self._set_weights(start + self.change)
        self._fit_head(train)
        self._merge_heads(before)
        self.finish(number)
        return {"similarity": similarity}

    def _class_statistics(self, train: Observations, *, pretrained: bool) -> ClassStatistics:
        found = ClassStatistics(self.classes, self.backbone.width).to(self.weight.device)
        for features, labels in train.map(self.frozen_features if pretrained else self.features):
            found.update(features, labels)
        return found

    def _fit_head(self, train: Observations) -> None:
        """Train the new head on features of the merged network."""
        rows = list(train.map(self.features))
        features, labels = map(torch.cat, zip(*rows, strict=True))
        device = features.device
        generator = self.randomness.generator("head batches", self.stage, device=device)

        def draw(count: int) -> tuple[Tensor, Tensor]:
            chosen = torch.randint(len(labels), (count,), generator=generator, device=device)
            return features[chosen], labels[chosen]

        steps = self.config.head_epochs * -(-len(labels) // BATCH)
        fit_head([self.weight], self._cosine, draw, steps)

    @full_precision
    def _merge_heads(self, new: ClassStatistics) -> None:
        """Move the heads of old domains towards the new one, and keep it beside them."""
        means, share = new.mean.to(self.means), self.config.head_merge
        for head, old_means in zip(self.heads, self.means, strict=True):
            both = _present(means) & _present(old_means)
            if both.any():
                plan = transport_plan(torch.cdist(old_means[both], means[both]))
                head[both] = (1 - share) * head[both] + share * plan @ self.weight[both]
        self.heads = torch.cat([self.heads, self.weight.detach()[None]])
        self.means = torch.cat([self.means, means[None]])

    # ------------------------------------------------------------------ weights in one row

    def _weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.network.parameters()).detach()

    def _pretrained(self) -> Tensor:
        return torch.cat([each.detach().float().flatten() for each in self.backbone.parameters()])

    def _set_weights(self, row: Tensor) -> None:
        """Copy into the parameters, which keep their addresses."""
        sizes = [each.numel() for each in self.network.parameters()]
        for parameter, part in zip(self.network.parameters(), torch.split(row, sizes), strict=True):
            parameter.copy_(part.view_as(parameter))

    # ------------------------------------------------------------------ the rest of the contract

    def compile_parts(self) -> None:
        super().compile_parts()
        self.network.compile_blocks()

    def lr_factor(self, name: str) -> float:
        return self.config.network_lr if name.startswith("network.") else 1.0

    def stored(self) -> list[Asset]:
        if not len(self.means):
            return []
        return [Asset("class means of each domain", "statistics", self.means.nbytes)]


def _present(means: Tensor) -> Tensor:
    """Which classes have an image, by their means `[..., C, D]`: `[..., C]`."""
    return (means != 0).any(-1)
