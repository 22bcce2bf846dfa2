"""Base classes of prompt methods whose pool grows by a block of rows per stage."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sodap.methods.base import MethodConfig, Observations, StageInfo
from sodap.methods.parts.growing_pool import GrowingPool
from sodap.methods.parts.linear_head import LinearHeadMethod
from sodap.prompting import NOTHING, Inspection, Inspector, Intervention
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class GrowingPrompts(LinearHeadMethod):
    """A frozen ViT, a growing pool of prompts and a linear head."""

    family = "prompt"
    trains = "newest prompts, head"
    stores = "nothing"
    without_decay = ("pool.*",)  # as published

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.pool = self.first_pool(randomness.generator("init prompts"))

    @abstractmethod
    def first_pool(self, generator: torch.Generator) -> GrowingPool:
        """The pool of stage 1."""

    @property
    @abstractmethod
    def rows_per_stage(self) -> int:
        """Number of rows that every later stage adds."""

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        self.stage = number
        if number > 1:
            self.pool.grow(self.rows_per_stage, self.randomness.generator("new prompts", number))
        return {"pool": self.pool_sizes()}

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        return {"pool": self.pool_sizes()}

    def pool_sizes(self) -> dict[str, int]:
        return {"frozen": self.pool.frozen_count, "active": self.pool.active_count}

    @abstractmethod
    def features(self, images: Tensor, inspector: Inspector | None = None) -> Tensor:
        """Input of the head `[B, D]`; an inspector sees the weights of every prompted block."""

    @torch.no_grad()
    def inspect(self, images: Tensor, intervention: Intervention = NOTHING) -> Inspection:
        frozen, active = self.pool.frozen_count, self.pool.active_count
        rows = torch.arange(frozen + active, device=self.head.weight.device)
        inspector = Inspector(rows >= frozen, intervention)
        logits = self.head(self.features(images, inspector))
        return Inspection(logits, inspector.selections, [])

    def prompt_values(self) -> Tensor:
        return self.pool.prompts.rows


Rows = Annotated[
    int,
    Field(ge=1, le=2000, description="prompts added per stage; earlier ones are frozen"),
]
Length = Annotated[
    int,
    Field(ge=2, le=64, multiple_of=2, description="tokens per prompt: half keys, half values"),
]


class GrowingPrefixesConfig(MethodConfig):
    """Sizes of a pool of prefixes."""

    rows_per_stage: Rows
    length: Length
    layers: int = Field(5, ge=1, description="number of blocks with prompts, from the first")


class GrowingPrefixes(GrowingPrompts):
    """Prompts as attention prefixes, with separate rows for each of the first blocks."""

    attention: ClassVar[bool] = False
    """Whether each row has an attention vector for the query."""

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
