"""DualPrompt: general prompts for what domains share, expert prompts for what is their own.

Prompts are prefixes: further keys and values of attention. The first layers take the general ones,
which every stage trains. The next layers take experts from a pool, of which each stage trains one
slice and leaves it for ever; an image finds its experts by their keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, ValidationInfo, field_validator
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.errors import SodapError
from sodap.methods.base import Batch, MethodConfig, Observations, StageInfo
from sodap.methods.parts.query_key import QueryKeyConfig, QueryKeyMethod, distance, nearest
from sodap.methods.parts.similarity import cosine_similarity
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

Layers = tuple[NonNegativeInt, ...]


class DualPromptConfig(QueryKeyConfig):
    """Lengths count tokens of the keys and as many of the values."""

    pool_size: int = Field(100, ge=1, le=100_000, description="expert prompts, of all stages")
    top_k: int = Field(
        5,
        ge=1,
        validate_default=True,
        description="expert prompts that a stage trains and that an image chooses",
    )
    faithful: bool = Field(
        False,
        description="as published: the test batch votes on its prompts, start values from "
        "U(-1, 1), keys and values mixed up by a reshape, gradients clipped at norm 1, keys that "
        "were never trained can be chosen",
    )
    general_length: int = Field(4, ge=1, le=1000, description="tokens of the general prompt")
    expert_length: int = Field(4, ge=1, le=1000, description="tokens of one expert prompt")
    general_layers: Layers = Field((0, 1), description="blocks with the general prompt, from 0")
    expert_layers: Layers = Field(
        (2, 3, 4),
        min_length=1,
        validate_default=True,
        description="blocks with expert prompts, from 0",
    )

    @field_validator("expert_layers")
    @classmethod
    def _one_prefix_a_layer(cls, layers: Layers, others: ValidationInfo) -> Layers:
        taken = [*others.data.get("general_layers", ()), *layers]
        if len(set(taken)) < len(taken):
            raise ValueError("a block is named twice among general and expert layers")
        return layers


@register_method
class DualPrompt(QueryKeyMethod):
    """Prefixes in the early blocks: general ones, and one slice of a pool for each stage."""

    name = "dual-prompt"
    trains = "general prompts, one slice of expert prompts and keys, head"
    Config = DualPromptConfig

    config: DualPromptConfig
    # The slice that trains is a parameter, and the others are buffers: nothing else keeps the
    # optimiser's decay and momentum away from them.
    pool: Tensor  # [E, 2, N, length, D]
    pool_keys: Tensor  # [N, D], one key for all layers

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c, width = self.config, backbone.width
        # A layer that the backbone does not have is left out.
        self.general_layers = [layer for layer in c.general_layers if layer < backbone.depth]
        self.expert_layers = [layer for layer in c.expert_layers if layer < backbone.depth]
        if not self.expert_layers:
            raise SodapError(
                f"{backbone.name} has {backbone.depth} blocks, and none of them is among the "
                f"expert_layers {list(c.expert_layers)} of {self.name} (counted from 0)"
            )
        general, experts, keys = (
            randomness.generator(f"init {what}") for what in ("general", "experts", "keys")
        )
        layers = len(self.general_layers), len(self.expert_layers)
        self.general = nn.Parameter(self.drawn(general, layers[0], 2, c.general_length, width))
        pool = self.drawn(experts, layers[1], 2, c.pool_size, c.expert_length, width)
        self.register_buffer("pool", pool)
        self.register_buffer("pool_keys", self.drawn(keys, c.pool_size, width))
        self.experts = nn.Parameter(self.pool[:, :, : c.top_k].clone())  # [E, 2, k, length, D]
        self.keys = nn.Parameter(self.pool_keys[: c.top_k].clone())  # [k, D]

    # ------------------------------------------------------------------ one batch

    def features(self, images: Tensor, experts: Tensor) -> Tensor:
        """CLS features `[B, D]`, given the experts of each image, `[E, 2, B, k, length, D]`."""
        experts = experts.flatten(3, 4)  # [E, 2, B, m, D]
        if self.config.faithful:
            experts = _misread(experts)
        general = self.general.unsqueeze(2).expand(-1, -1, len(images), -1, -1)
        prefixes = dict(zip(self.general_layers, general, strict=True))
        prefixes |= dict(zip(self.expert_layers, experts, strict=True))

        def prefix(layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
            if layer not in prefixes:
                return None
            keys, values = prefixes[layer]
            return keys, values

        feature: Tensor = self.backbone(images, prefix=prefix)
        return feature.float()

    def forward(self, images: Tensor) -> Tensor:
        experts, keys = self._choice()
        likeness = cosine_similarity(self.query(images), keys)
        chosen = nearest(likeness, self.config.top_k, vote=self.config.faithful)  # [B, k]
        logits: Tensor = self.head(self.features(images, experts[:, :, chosen]))
        return logits

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """In training nothing is chosen: every image gets the slice of its stage."""
        experts = self.experts.unsqueeze(2).expand(-1, -1, len(batch.images), -1, -1, -1)
        logits = self.head(self.features(batch.images, experts))
        likeness = cosine_similarity(self.query(batch.images), self.keys)
        return {
            "ce": F.cross_entropy(logits, batch.labels),
            "pull": self.config.pull * distance(likeness),
        }

    def _choice(self) -> tuple[Tensor, Tensor]:
        """Experts `[E, 2, n, length, D]` and keys `[n, D]` that an image can choose from."""
        now = self._rows(max(self.stage, 1))
        end = self.config.pool_size if self.config.faithful else now.stop
        before, after = slice(now.start), slice(now.stop, end)
        experts = [self.pool[:, :, before], self.experts, self.pool[:, :, after]]
        return torch.cat(experts, 2), torch.cat(
            [self.pool_keys[before], self.keys, self.pool_keys[after]]
        )

    # ------------------------------------------------------------------ stages

    def _rows(self, stage: int) -> slice:
        """The slice of the pool that a stage (from 1) trains."""
        k = self.config.top_k
        return slice((stage - 1) * k, stage * k)

    @torch.no_grad()
    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        """Experts go on from where those of the stage before ended; keys start afresh."""
        rows, size = self._rows(number), self.config.pool_size
        if rows.stop > size:
            raise SodapError(
                f"{self.name} has {size} expert prompts, {self.config.top_k} for each stage, and "
                f"none are left for stage {number}; start with a larger pool_size"
            )
        self.stage = number
        self.experts.copy_(self.pool[:, :, self._rows(max(number - 1, 1))])
        self.keys.copy_(self.pool_keys[rows])
        return {"slice": [rows.start, rows.stop]}

    @torch.no_grad()
    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        """Put the slice where no optimiser reaches it."""
        rows = self._rows(number)
        self.pool[:, :, rows] = self.experts
        self.pool_keys[rows] = self.keys
        return {}


def _misread(experts: Tensor) -> Tensor:
    """What the PyTorch port makes of `[E, 2, B, m, D]`: read in memory order as `[E, B, 2, m, D]`.

    If all images have the same prompts, the first half of the batch gets the keys as its values,
    too, and the second half the values as its keys. A batch of one image is right.
    """
    layers, two, batch, length, width = experts.shape
    return experts.reshape(layers, batch, two, length, width).transpose(1, 2)
