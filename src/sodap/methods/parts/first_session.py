"""Base class of methods that adapt the network in stage 1 and then solve for a head.

Stage 1 trains a low-rank residual and a linear head. Afterwards the network is frozen, and every
stage adds the features of its images to the sums of a ridge regression: no epochs, no forgetting.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sodap.backbones import Lora, LoraLayout
from sodap.methods.base import (
    Asset,
    Batch,
    LinearHead,
    MethodConfig,
    Observations,
    StageInfo,
    tensor_bytes,
)
from sodap.methods.parts.second_moments import PENALTIES, SecondMoments, with_constant
from sodap.methods.parts.two_phase import TwoPhaseMethod
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class FirstSessionConfig(MethodConfig):
    """The residual that stage 1 trains."""

    rank: int = Field(8, ge=1, le=256, description="rank of the residuals of a linear layer")


class FirstSessionRidge(TwoPhaseMethod):
    """Ridge regression on features that stage 1 has adapted.

    The penalty of a stage is chosen on its own training images: they are divided into `folds`, and
    each of the first `held_out` folds is predicted by a head learned from the others.
    """

    family = "reference"
    trains = "low-rank residuals in stage 1, then a head in closed form"
    stores = "second moments"
    without_decay = ("residual",)

    folds: ClassVar[int]
    held_out: ClassVar[int]

    config: FirstSessionConfig
    weight: Tensor  # W [feature_width + 1, C]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.layout = LoraLayout.of(backbone, rank=self.config.rank)
        self.residual = nn.Parameter(self.layout.draw(randomness.generator("init residual")))
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))
        self.sums = SecondMoments(classes, self.feature_width)
        self.register_buffer("weight", torch.zeros(self.feature_width + 1, classes))

    @property
    @abstractmethod
    def feature_width(self) -> int:
        """Width of `features`."""

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Features `[B, feature_width]` of the adapted network that the ridge reads.

        Whatever is computed from the network's own features is computed in float64: the terms of a
        ridge regression cancel, and products in float32 may be rounded to TF32 on a GPU.
        """

    @property
    def lora(self) -> Lora:
        """The residual as a port."""
        return self.layout.port(self.residual)

    @property
    def has_epochs(self) -> bool:
        return self.stage == 1

    def forward(self, images: Tensor) -> Tensor:
        """Logits; while stage 1 is trained those of its head, afterwards those of the ridge."""
        if self.has_epochs and self.in_training:
            logits: Tensor = self.head(self.backbone(images, lora=self.lora))
            return logits
        with torch.no_grad():
            features = self.features(images)
        return (with_constant(features.double()) @ self.weight.double()).float()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        parts = self._fold_sums(train)
        penalty = choose_penalty(parts, self.held_out)
        for part in parts:
            self.sums.merge(part)
        self.weight.copy_(self.sums.solve(penalty))
        self.finish(number)
        return {"penalty": penalty}

    @torch.no_grad()
    def _fold_sums(self, train: Observations) -> list[SecondMoments]:
        """Second moments of each fold; the images of a class are dealt to the folds in turn."""
        parts = [
            SecondMoments(self.classes, self.feature_width).to(self.weight.device)
            for _ in range(self.folds)
        ]
        dealt = torch.zeros(self.classes, dtype=torch.int64, device=self.weight.device)
        for features, labels in train.map(self.features):
            member = F.one_hot(labels, self.classes)
            turn = (dealt + member.cumsum(0) - 1).gather(1, labels[:, None])[:, 0]
            dealt += member.sum(0)
            for number, part in enumerate(parts):
                own = turn % self.folds == number
                part.update(features[own], labels[own])
        return parts

    def stored(self) -> list[Asset]:
        return [Asset("second moments of the features", "statistics", tensor_bytes(self.sums))]

    def trainable_count(self) -> int:
        return super().trainable_count() if self.has_epochs else self.weight.numel()


@torch.no_grad()
def choose_penalty(parts: list[SecondMoments], held_out: int) -> float:
    """The penalty with the smallest squared error on the first `held_out` of several folds.

    Without an image to test on, nothing speaks for any penalty: the largest is the safest.
    """
    errors = dict.fromkeys(PENALTIES, 0.0)
    tested = False
    for held in parts[:held_out]:
        others = SecondMoments(held.cross.shape[1], len(held.gram) - 1).to(held.gram.device)
        for part in parts:
            if part is not held:
                others.merge(part)
        if not (int(held.count) and int(others.count)):
            continue
        tested = True
        for penalty in PENALTIES:
            errors[penalty] += float(held.error(others.solve(penalty)))
    return min(errors, key=errors.__getitem__) if tested else max(PENALTIES)
