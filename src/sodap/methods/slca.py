"""SLCA (Zhang et al., 2023): slow fine-tuning, then alignment of the classifier.

The network learns much more slowly than the head. After each later stage the head is trained again
on features drawn from Gaussians of all classes of all domains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from sodap.methods.base import Asset, MethodConfig, Observations, StageInfo, tensor_bytes
from sodap.methods.finetune import Finetune, FinetuneConfig
from sodap.methods.parts.gaussians import FeatureGaussians
from sodap.methods.parts.head_fitting import fit_head
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class SLCAConfig(FinetuneConfig):
    """Published values."""

    network_lr: float = Field(
        0.01, gt=0, le=1, description="learning rate of the network as a fraction of the head's"
    )
    align_epochs: int = Field(
        5, ge=0, le=1000, description="epochs of the alignment, each with 256 features per Gaussian"
    )
    temperature: float = Field(
        0.1, gt=0, description="logits of the alignment have the length 1 / temperature"
    )


@register_method
class SLCA(Finetune):
    """Slow fine-tuning of all weights, with a head aligned on Gaussians of past features."""

    name = "slca"
    family = "replay"
    trains = "all weights, slowly"
    stores = "class Gaussians"
    Config = SLCAConfig

    config: SLCAConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.gaussians = FeatureGaussians(backbone.width)

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        rows = list(train.map(lambda images: self.features(images).float()))
        features, labels = map(torch.cat, zip(*rows, strict=True))
        self.gaussians.learn(features, labels)
        if number > 1:
            self._align()
        return {}

    def _align(self) -> None:
        """Train the head on features of all Gaussians."""
        device = self.head.weight.device
        generator = self.randomness.generator("alignment", self.stage, device=device)
        fit_head(
            list(self.head.parameters()),
            self._normalised_logits,
            lambda count: self.gaussians.draw(count, generator),
            steps=self.config.align_epochs * len(self.gaussians),
        )

    def _normalised_logits(self, features: Tensor) -> Tensor:
        """Logits of a fixed length, so that the head cannot fit by growing: `[B, D] -> [B, C]`."""
        logits: Tensor = self.head(features)
        length = torch.linalg.vector_norm(logits, dim=1, keepdim=True) + 1e-7
        normalised: Tensor = logits / (length * self.config.temperature)
        return normalised

    def stored(self) -> list[Asset]:
        if not len(self.gaussians):
            return []
        size = tensor_bytes(self.gaussians)
        return [Asset("Gaussians of the features of each class and domain", "statistics", size)]
