"""DualPrompt (Wang et al., 2022): general prompts for all domains, expert prompts for each.

Prompts are prefixes, that is, extra keys and values for attention. The first layers get general
prompts, which every stage trains. The next layers get expert prompts from a pool. Each stage trains
one slice of the pool and freezes it; at test an image chooses experts by their keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, ValidationInfo, field_validator
from torch import Tensor, nn

from sodap.errors import SodapError
from sodap.methods.base import Batch, MethodConfig, Observations, StageInfo
from sodap.methods.parts.query_key import (
    QueryKeyConfig,
    QueryKeyMethod,
    chosen_after,
    equal_weights,
    most_similar,
    pull_loss,
)
from sodap.methods.parts.similarity import cosine_similarity
from sodap.methods.registry import register_method
from sodap.prompting import NOTHING, Inspection, Intervention
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT

Layers = tuple[NonNegativeInt, ...]


class DualPromptConfig(QueryKeyConfig):
    """Defaults are the sizes in the paper on Residual SODAP. Lengths count tokens of keys and as
    many of values."""

    pool_size: int = Field(100, ge=1, le=100_000, description="expert prompts of all stages")
    top_k: int = Field(
        5,
        ge=1,
        validate_default=True,
        description="expert prompts that a stage trains and that an image chooses",
    )
    faithful: bool = Field(
        False,
        description="as published: prompts are chosen by a vote of the test batch, initial values "
        "are U(-1, 1), a reshape mixes up keys and values, gradients are clipped at norm 1, and "
        "untrained keys can be chosen",
    )
    general_length: int = Field(4, ge=1, le=1000, description="tokens of the general prompt")
    expert_length: int = Field(4, ge=1, le=1000, description="tokens per expert prompt")
    general_layers: Layers = Field((0, 1), description="blocks with the general prompt, from 0")
    expert_layers: Layers = Field(
        (2, 3, 4),
        min_length=1,
        validate_default=True,
        description="blocks with expert prompts, from 0",
    )

    @field_validator("expert_layers")
    @classmethod
    def _layers_are_distinct(cls, layers: Layers, others: ValidationInfo) -> Layers:
        named = [*others.data.get("general_layers", ()), *layers]
        if len(set(named)) < len(named):
            raise ValueError("general_layers and expert_layers must name each block only once")
        return layers


@register_method
class DualPrompt(QueryKeyMethod):
    """Prefixes in early blocks: general ones, and a slice of a pool for each stage."""

    name = "dual-prompt"
    trains = "general prompts, one slice of expert prompts and keys, head"
    Config = DualPromptConfig
    without_decay = ("general", "experts", "keys")

    config: DualPromptConfig
    # The current slice is a parameter (`experts`, `keys`); all others are in these buffers.
    pool: Tensor  # [E, 2, N, length, D]
    pool_keys: Tensor  # [N, D], common to all layers

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c, width = self.config, backbone.width
        self.general_layers = [layer for layer in c.general_layers if layer < backbone.depth]
        self.expert_layers = [layer for layer in c.expert_layers if layer < backbone.depth]
        if not self.expert_layers:
            raise SodapError(
                f"{backbone.name} has only {backbone.depth} blocks, so {self.name} cannot use any "
                f"of the expert_layers {list(c.expert_layers)}; choose smaller numbers"
            )
        general, experts, keys = (
            randomness.generator(f"init {what}") for what in ("general", "experts", "keys")
        )
        layers = len(self.general_layers), len(self.expert_layers)
        self.general = nn.Parameter(self.initial(general, layers[0], 2, c.general_length, width))
        pool = self.initial(experts, layers[1], 2, c.pool_size, c.expert_length, width)
        self.register_buffer("pool", pool)
        self.register_buffer("pool_keys", self.initial(keys, c.pool_size, width))
        self.experts = nn.Parameter(self.pool[:, :, : c.top_k].clone())  # [E, 2, k, length, D]
        self.keys = nn.Parameter(self.pool_keys[: c.top_k].clone())  # [k, D]

    # ------------------------------------------------------------------ one batch

    def prompted_features(self, images: Tensor, experts: Tensor) -> Tensor:
        """CLS features `[B, D]`, given the experts of each image `[E, 2, B, k, length, D]`."""
        experts = experts.flatten(3, 4)  # [E, 2, B, m, D]
        if self.config.faithful:
            experts = _mixed_up(experts)
        general = self.general.unsqueeze(2).expand(-1, -1, len(images), -1, -1)
        prefixes = dict(zip(self.general_layers, general, strict=True))
        prefixes |= dict(zip(self.expert_layers, experts, strict=True))

        def prefix(layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
            if layer not in prefixes:
                return None
            keys, values = prefixes[layer]
            return keys, values

        features: Tensor = self.backbone(images, prefix=prefix)
        return features.float()

    def forward(self, images: Tensor) -> Tensor:
        experts, keys = self._candidates()
        similarity = cosine_similarity(self.frozen_features(images), keys)
        chosen = most_similar(similarity, self.config.top_k, vote=self.config.faithful)  # [B, k]
        logits: Tensor = self.head(self.prompted_features(images, experts[:, :, chosen]))
        return logits

    @torch.no_grad()
    def inspect(self, images: Tensor, intervention: Intervention = NOTHING) -> Inspection:
        """All expert layers get the experts that an image chooses; general prompts stay."""
        experts, keys = self._candidates()
        similarity = cosine_similarity(self.frozen_features(images), keys)
        chosen = most_similar(similarity, self.config.top_k, vote=self.config.faithful)
        current = self._rows(max(self.stage, 1))
        rows = torch.arange(len(keys), device=keys.device)
        selection = equal_weights(chosen, (rows >= current.start) & (rows < current.stop))
        chosen, kept = chosen_after(intervention, selection, self.config.top_k)
        left = experts[:, :, chosen] * kept[..., None, None]
        return Inspection(self.head(self.prompted_features(images, left)), [selection], [])

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses; in training every image gets the slice of the current stage."""
        experts = self.experts.unsqueeze(2).expand(-1, -1, len(batch.images), -1, -1, -1)
        logits = self.head(self.prompted_features(batch.images, experts))
        similarity = cosine_similarity(self.frozen_features(batch.images), self.keys)
        return {
            "ce": F.cross_entropy(logits, batch.labels),
            "pull": self.config.pull * pull_loss(similarity),
        }

    def _candidates(self) -> tuple[Tensor, Tensor]:
        """Experts `[E, 2, n, length, D]` and keys `[n, D]` that an image can choose from."""
        now = self._rows(max(self.stage, 1))
        end = self.config.pool_size if self.config.faithful else now.stop
        before, after = slice(now.start), slice(now.stop, end)
        experts = [self.pool[:, :, before], self.experts, self.pool[:, :, after]]
        keys = [self.pool_keys[before], self.keys, self.pool_keys[after]]
        return torch.cat(experts, 2), torch.cat(keys)

    # ------------------------------------------------------------------ stages

    def _rows(self, stage: int) -> slice:
        """Slice of the pool that a stage (from 1) trains."""
        k = self.config.top_k
        return slice((stage - 1) * k, stage * k)

    @torch.no_grad()
    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        """Start the new experts from those of the previous stage; keys start from new values."""
        rows, size = self._rows(number), self.config.pool_size
        if rows.stop > size:
            raise SodapError(
                f"{self.name} needs {self.config.top_k} of its {size} expert prompts per stage "
                f"and has none left for stage {number}; start again with a larger pool_size"
            )
        self.stage = number
        self.experts.copy_(self.pool[:, :, self._rows(max(number - 1, 1))])
        self.keys.copy_(self.pool_keys[rows])
        return {"slice": [rows.start, rows.stop]}

    @torch.no_grad()
    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        """Freeze the slice of this stage."""
        rows = self._rows(number)
        self.pool[:, :, rows] = self.experts
        self.pool_keys[rows] = self.keys
        return {}


def _mixed_up(experts: Tensor) -> Tensor:
    """`[E, 2, B, m, D]` read in memory order as `[E, B, 2, m, D]`, as in the PyTorch port.

    If all images have the same prompts, the first half of the batch gets the keys as values as
    well, and the second half the values as keys. A batch of one image is correct.
    """
    layers, two, batch, length, width = experts.shape
    return experts.reshape(layers, batch, two, length, width).transpose(1, 2)
