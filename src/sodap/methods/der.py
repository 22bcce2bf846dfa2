"""DER++ (Buzzega et al., 2020): replay of a few images with their labels and earlier logits.

Every step adds two draws of kept images. The network has to reproduce the kept logits on the first
draw and the labels on the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.methods.base import Asset, Batch, MethodConfig, Observations, StageInfo, tensor_bytes
from sodap.methods.finetune import Finetune, FinetuneConfig
from sodap.methods.parts.reservoir import Reservoir
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class DerConfig(FinetuneConfig):
    """Size of the reservoir and weights of the replay losses."""

    buffer: int = Field(30, ge=1, description="maximum number of images kept, over all domains")
    alpha: float = Field(0.5, ge=0, description="weight of the loss on kept logits")
    beta: float = Field(0.5, ge=0, description="weight of the loss on kept labels")
    faithful: bool = Field(
        False,
        description="as published: the reservoir is filled after every training step with the "
        "logits of the current weights, and each epoch counts as new images; unlike there, the "
        "augmented view is kept instead of the image",
    )


@register_method
class Der(Finetune):
    """All weights trained, with replay from a reservoir of images, labels and logits.

    By default the reservoir sees each image once, at the end of its stage, with the logits of the
    best weights. The share of a domain then does not depend on its number of epochs, and early
    stopping does not change the reservoir.
    """

    name = "der++"
    family = "replay"
    trains = "all weights"
    stores = "images, labels, logits"
    Config = DerConfig

    config: DerConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.reservoir = Reservoir(self.config.buffer, backbone.image_size, classes)
        self._filled = 0  # length of the reservoir, known without asking the device
        self._pending: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    @property
    def graph_safe(self) -> bool:
        """False if the reservoir changes from step to step."""
        return not self.config.faithful

    @property
    def running(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("reservoir.*",) if self.config.faithful else ()

    # ------------------------------------------------------------------ one batch

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        labels, generator = batch.labels, batch.generator
        kept, count = self.reservoir, min(self._filled, len(labels))
        first, second = (self._draw(count, generator) for _ in range(2))
        # Images do not affect each other, so the three passes of the paper are one here.
        images = [batch.images]
        if count:
            images.append(batch.augment(kept.images[torch.cat([first, second])]))
        logits, on_first, on_second = self(torch.cat(images)).split([len(labels), count, count])
        losses = {"ce": F.cross_entropy(logits, labels)}
        if count:
            losses["logits"] = self.config.alpha * F.mse_loss(on_first, kept.logits[first])
            losses["labels"] = self.config.beta * F.cross_entropy(on_second, kept.labels[second])
        if self.config.faithful:
            draws = torch.rand(len(labels), generator=generator, device=labels.device)
            self._pending = (self.backbone.pixels(batch.images), labels, logits.detach(), draws)
        return losses

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Indices `[count]` of different items in the reservoir."""
        device = self.reservoir.labels.device
        return torch.rand(self._filled, generator=generator, device=device).argsort()[:count]

    def after_step(self) -> None:
        if self._pending is not None:
            self.reservoir.add(*self._pending)
            self._pending = None
            self._filled = len(self.reservoir)

    # ------------------------------------------------------------------ stages

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        self._filled = len(self.reservoir)
        return super().begin_stage(number, train)

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        if not self.config.faithful:
            generator = self.randomness.generator("reservoir", number)
            for (logits, pixels), labels in train.map(lambda x: (self(x), self.backbone.pixels(x))):
                draws = torch.rand(len(labels), dtype=torch.float64, generator=generator)
                self.reservoir.add(pixels, labels, logits, draws)
        return {"kept": len(self.reservoir)}

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        super().restore(state, stage)
        self._filled = len(self.reservoir)

    def stored(self) -> list[Asset]:
        size, count = tensor_bytes(self.reservoir), len(self.reservoir)
        return [Asset("images, labels and logits of past domains", "images", size, count)]
