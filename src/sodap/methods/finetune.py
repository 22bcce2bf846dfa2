"""All weights fine-tuned on one domain after the other, with nothing done against forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field
from torch import Tensor

from sodap.methods.base import MethodConfig
from sodap.methods.parts.linear_head import LinearHeadMethod
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT, PortedViT


class FinetuneConfig(MethodConfig):
    """Learning rate of the pretrained network, which must be smaller than that of a new head."""

    network_lr: float = Field(
        0.02, gt=0, le=1, description="learning rate of the network as a fraction of the head's"
    )


@register_method
class Finetune(LinearHeadMethod):
    """A trainable copy of the backbone and a linear head.

    AdamW moves every weight by about the learning rate, whatever its gradient. At a head's 1e-3 a
    pretrained ViT is ruined within a few steps, so the network gets 2e-5 by default, a usual value
    for fine-tuning a ViT.
    """

    name = "finetune"
    family = "reference"
    trains = "all weights"
    stores = "nothing"
    Config = FinetuneConfig
    without_decay = ("network.*",)  # decay would pull away from the pretrained weights

    config: FinetuneConfig
    network: PortedViT | None
    """The trained copy of the backbone; None if only the head trains."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.network = backbone.trainable_copy() if self.trains_network else None

    @property
    def trains_network(self) -> bool:
        return True

    def features(self, images: Tensor) -> Tensor:
        if self.network is None:
            return self.frozen_features(images)
        features: Tensor = self.network(images)
        return features

    def compile_parts(self) -> None:
        super().compile_parts()
        if self.network is not None:
            self.network.compile_blocks()

    def lr_factor(self, name: str) -> float:
        return self.config.network_lr if name.startswith("network.") else 1.0
