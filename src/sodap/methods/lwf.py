"""Learning without forgetting (Li and Hoiem, 2016): the previous model as teacher on new images.

No image and no statistic is kept, only the model of the previous stage. Its predictions on the new
images are distilled into the new model.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.methods.base import Asset, Batch, MethodConfig, Observations, StageInfo, tensor_bytes
from sodap.methods.finetune import Finetune, FinetuneConfig
from sodap.methods.registry import register_method
from sodap.preserving import distillation_loss
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class LwfConfig(FinetuneConfig):
    """What trains, and how strongly the teacher counts."""

    trained: Literal["all", "head"] = Field(
        "all",
        description="train all weights, as published, or only a head on the frozen backbone, "
        "whose teacher needs no second pass",
    )
    temperature: float = Field(2.0, gt=0, description="temperature of the distillation")
    weight: float = Field(1.0, ge=0, description="weight of the distillation loss")


@register_method
class Lwf(Finetune):
    """All weights trained, with the predictions of the previous stage distilled.

    The paper has one head per task. Domains share their classes, so there is one head, and the
    teacher predicts all classes.
    """

    name = "lwf"
    family = "regularisation"
    trains = "all weights, or the head"
    stores = "teacher"
    Config = LwfConfig

    config: LwfConfig
    teacher_network: FrozenViT | None
    """Network of the previous stage; None if only the head trains, since the backbone stays."""

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
            teacher = self._teacher_logits(batch.images, features)
            distilled = distillation_loss(logits, teacher, self.config.temperature)
            losses["distill"] = self.config.weight * distilled
        return losses

    @torch.no_grad()
    def _teacher_logits(self, images: Tensor, features: Tensor) -> Tensor:
        """Logits `[B, C]` of the previous model; frozen features `[B, D]` are used again."""
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
