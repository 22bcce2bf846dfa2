"""Joint training on all domains so far: the upper bound of a method that may keep every image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from sodap.methods.base import Asset, LinearHead, MethodConfig, Observations, StageInfo
from sodap.methods.finetune import Finetune, FinetuneConfig
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class JointConfig(FinetuneConfig):
    """What trains."""

    trained: Literal["all", "head"] = Field(
        "all", description="train all weights, or only a head on the frozen backbone"
    )


@register_method
class Joint(Finetune):
    """New weights at every stage, trained on the images of all domains so far.

    Row t of R is the result of one training on domains 1 to t, independent of their order.
    """

    name = "joint"
    trains = "all weights, or the head"
    stores = "all images"
    Config = JointConfig
    learns_all_domains = True

    config: JointConfig
    kept: Tensor  # number of [training, validation] images that the next stage needs again

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.register_buffer("kept", torch.zeros(2, dtype=torch.int64))

    @property
    def trains_network(self) -> bool:
        return self.config.trained == "all"

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        initial = LinearHead(
            self.backbone.width, self.classes, self.randomness.generator("init head")
        )
        self.head.load_state_dict(initial.state_dict())
        if self.network is not None:
            self.network.load_state_dict(self.backbone.state_dict())
        return super().begin_stage(number, train)

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        counts = [sum(len(labels) for _, labels in images) for images in (train, val)]
        self.kept.copy_(torch.tensor(counts))
        return {}

    def stored(self) -> list[Asset]:
        bytes_each = 3 * self.backbone.image_size**2
        return [
            Asset(f"{kind} images of all domains", "images", bytes_each * count, count)
            for kind, count in zip(("training", "validation"), self.kept.tolist(), strict=True)
        ]
