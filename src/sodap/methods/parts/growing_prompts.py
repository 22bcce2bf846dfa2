"""What prompt methods with a growing pool share: a block of rows a stage, and one head.

They differ in how an image asks the pool, and in where the answer goes. In two of them it goes, as
a prefix of keys and values, into the first blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.base import Batch, LinearHead, Method, MethodConfig, Observations, StageInfo
from sodap.methods.parts.growing_pool import GrowingPool
from sodap.randomness import Randomness


class GrowingPrompts(Method):
    """A frozen ViT, a pool that a new block joins at every stage, and a head for all stages."""

    family = "prompt"
    trains = "newest prompts, head"
    stores = "nothing"

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.pool = self.first_pool(randomness.generator("init prompts"))
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))

    @abstractmethod
    def first_pool(self, generator: torch.Generator) -> GrowingPool:
        """The pool of stage 1."""

    @property
    @abstractmethod
    def rows_per_stage(self) -> int:
        """How many rows join the pool at every later stage."""

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """`[B, D]` of the prompted backbone."""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels)}

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        self.stage = number
        if number > 1:
            self.pool.grow(self.rows_per_stage, self.randomness.generator("new prompts", number))
        return {"pool": self.pool_sizes()}

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        return {"pool": self.pool_sizes()}

    def prompt_values(self) -> Tensor:
        return self.pool.prompts.rows

    def pool_sizes(self) -> dict[str, int]:
        return {"frozen": self.pool.frozen_count, "active": self.pool.active_count}

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Decay on the head's matrix alone: the papers train prompts and keys without any."""
        free = [*self.pool.parameters(), self.head.bias]
        return [
            {"params": [self.head.weight], "lr": lr, "weight_decay": weight_decay},
            {"params": free, "lr": lr, "weight_decay": 0.0},
        ]


Rows = Annotated[
    int,
    Field(ge=1, le=2000, description="prompts that join at every stage; earlier ones are frozen"),
]
Length = Annotated[
    int,
    Field(ge=2, le=64, multiple_of=2, description="tokens of a prompt: half keys, half values"),
]


class GrowingPrefixesConfig(MethodConfig):
    rows_per_stage: Rows
    length: Length
    layers: int = Field(5, ge=1, description="prompts go into the first so many blocks")


class GrowingPrefixes(GrowingPrompts):
    """Prompts that are prefixes, a set for each of the first blocks; every stage adds as many."""

    attention: ClassVar[bool] = False
    """Whether each row weighs the coordinates of the query on its own."""

    config: GrowingPrefixesConfig

    def first_pool(self, generator: torch.Generator) -> GrowingPool:
        return GrowingPool(
            self.backbone.width,
            layers=min(self.config.layers, self.backbone.depth),
            length=self.config.length,
            rows=self.config.rows_per_stage,
            attention=self.attention,
            generator=generator,
        )

    @property
    def rows_per_stage(self) -> int:
        return self.config.rows_per_stage
