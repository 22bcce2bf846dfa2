"""Learning without forgetting (Li and Hoiem, 2016): the model of yesterday teaches on new images.

No image and no statistic of the past is kept. What is kept is the former model, which says of every
new image what it would have said, and the new model is held to that.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.base import Asset, Batch, MethodConfig, Observations, StageInfo, tensor_bytes
from sodap.methods.finetune import Finetune, FinetuneConfig
from sodap.methods.registry import register_method
from sodap.preserving import distillation_loss
from sodap.randomness import Randomness


class LwfConfig(FinetuneConfig):
    trained: Literal["all", "head"] = Field(
        "all",
        description="all weights, as published, or a head on the frozen backbone: "
        "then the teacher is a head as well and costs nothing",
    )
    temperature: float = Field(2.0, gt=0, description="of the distillation")
    weight: float = Field(1.0, ge=0, description="of the distillation against the new labels")


@register_method
class Lwf(Finetune):
    """All weights trained, and held to the predictions of the stage before.

    The paper gives every task a head of its own. Domains share their classes, so there is one
    head, and the former model's opinion of all classes is what the new model should keep.
    """

    name = "lwf"
    family = "regularisation"
    trains = "all weights, or the head"
    stores = "teacher"
    Config = LwfConfig

    config: LwfConfig
    teacher_network: FrozenViT | None
    """None where the frozen backbone serves both."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.teacher_network = copy.deepcopy(backbone) if self.trains_network else None
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)

    @property
    def trains_network(self) -> bool:
        return self.config.trained == "all"

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        features = self.features(batch.images)
        logits = self.head(features)
        losses = {"ce": F.cross_entropy(logits, batch.labels)}
        if self.stage > 1:
            taught = self._taught(batch.images, features)
            distilled = distillation_loss(logits, taught, self.config.temperature)
            losses["distill"] = self.config.weight * distilled
        return losses

    @torch.no_grad()
    def _taught(self, images: Tensor, features: Tensor) -> Tensor:
        """What the former model says `[B, C]`; frozen features `[B, D]` need no second pass."""
        if self.teacher_network is not None:
            features = self.teacher_network(images)
        logits: Tensor = self.teacher_head(features)
        return logits

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        self.teacher_head.load_state_dict(self.head.state_dict())
        if self.teacher_network is not None and self.network is not None:
            self.teacher_network.load_state_dict(self.network.state_dict())
        return {}

    def compile_parts(self) -> None:
        super().compile_parts()
        if self.teacher_network is not None:
            self.teacher_network.compile_blocks()

    def stored(self) -> list[Asset]:
        network = [] if self.teacher_network is None else [self.teacher_network]
        size = tensor_bytes(self.teacher_head, *network)
        return [Asset("model of the stage before", "teacher", size)]
