"""All weights trained: domain after domain with no care for the past, or on all domains at once.

`finetune` is what happens when nothing is done to remember and everything may change. `joint` is
the upper bound: it is given the images of every domain so far, which no other method is.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.backbones.vit import PortedViT
from sodap.methods.base import (
    Asset,
    Batch,
    LinearHead,
    Method,
    MethodConfig,
    Observations,
    StageInfo,
)
from sodap.methods.registry import register_method
from sodap.randomness import Randomness


class FinetuneConfig(MethodConfig):
    """A head starts from nothing, a pretrained network does not: they need different steps."""

    network_lr: float = Field(
        0.02, gt=0, le=1, description="learning rate of the network, in parts of the head's"
    )


@register_method
class Finetune(Method):
    """A trainable copy of the backbone and a linear head.

    The network's steps are much smaller than the head's. AdamW moves every weight by about the
    learning rate, whatever its gradient; at a head's 1e-3 a pretrained ViT is lost within a few
    steps. The default makes that 2e-5, in the middle of what ViTs are usually fine-tuned with.

    No decay pulls on the network: it would pull away from the pretrained weights, towards zero.
    """

    name = "finetune"
    family = "reference"
    trains = "all weights"
    stores = "nothing"
    Config = FinetuneConfig

    config: FinetuneConfig
    network: PortedViT | None
    """The copy that trains; None where the frozen backbone does."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.network = backbone.thawed() if self.trains_network else None
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))

    @property
    def trains_network(self) -> bool:
        return True

    def features(self, images: Tensor) -> Tensor:
        """`[B, D]`."""
        if self.network is not None:
            return self.network(images)  # type: ignore[no-any-return]
        with torch.no_grad():
            return self.backbone(images)  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}

    def compile_parts(self) -> None:
        super().compile_parts()
        if self.network is not None:
            self.network.compile_blocks()

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """The head as in any method; the network in small steps and without decay."""
        groups: list[dict[str, Any]] = [
            {"params": [self.head.weight], "lr": lr, "weight_decay": weight_decay},
            {"params": [self.head.bias], "lr": lr, "weight_decay": 0.0},
        ]
        if self.network is not None:
            small = lr * self.config.network_lr
            groups.append({"params": [*self.network.parameters()], "lr": small, "weight_decay": 0})
        return groups


class JointConfig(FinetuneConfig):
    trained: Literal["all", "head"] = Field(
        "all", description="all weights, or a head on the frozen backbone"
    )


@register_method
class Joint(Finetune):
    """Fresh weights, trained on all domains so far at once; its images of the past are declared.

    Every stage starts anew. So row t of R is what one training on domains 1 to t gives, in
    whatever order they came, and no domain has had more epochs than another.
    """

    name = "joint"
    trains = "all weights, or the head"
    stores = "all images"
    Config = JointConfig
    learns_all_domains = True

    config: JointConfig
    kept: Tensor  # how many images the next stage needs again: [train, val]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.register_buffer("kept", torch.zeros(2, dtype=torch.int64))

    @property
    def trains_network(self) -> bool:
        return self.config.trained == "all"

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        fresh = LinearHead(
            self.backbone.width, self.classes, self.randomness.generator("init head")
        )
        self.head.load_state_dict(fresh.state_dict())
        if self.network is not None:
            # Where the frozen matrices are kept in bf16, so are products: the start is the same.
            self.network.load_state_dict(self.backbone.state_dict())
        return super().begin_stage(number, train)

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        counts = [sum(len(labels) for _, labels in batches) for batches in (train, val)]
        self.kept.copy_(torch.tensor(counts))
        return {}

    def stored(self) -> list[Asset]:
        bytes_each = 3 * self.backbone.image_size**2
        return [
            Asset(f"{kind} images of all domains", "images", bytes_each * count, count)
            for kind, count in zip(("training", "validation"), self.kept.tolist(), strict=True)
        ]
