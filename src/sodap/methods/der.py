"""DER++ (Buzzega et al., 2020): a few old images, and what the model once said of them.

Every step also looks at some of the kept images. On one draw the network has to give the logits
that were kept with them, on another the true labels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.methods.base import Asset, Batch, MethodConfig, Observations, StageInfo, tensor_bytes
from sodap.methods.finetune import Finetune, FinetuneConfig
from sodap.methods.parts.reservoir import Reservoir
from sodap.methods.registry import register_method
from sodap.randomness import Randomness


class DerConfig(FinetuneConfig):
    buffer: int = Field(30, ge=1, description="images kept at most, over all domains")
    alpha: float = Field(0.5, ge=0, description="weight of the kept logits")
    beta: float = Field(0.5, ge=0, description="weight of the kept labels")
    faithful: bool = Field(
        False,
        description="as published: the buffer is filled after every training step, with "
        "half-trained logits, and an image counts anew in every epoch; unlike there, its view is "
        "kept and not the image",
    )


@register_method
class Der(Finetune):
    """All weights trained, with a reservoir of images, labels and logits replayed.

    By default the reservoir sees each image once: at the end of its stage, as it is, with the
    logits of the best weights. So the share of a domain does not depend on how many epochs it
    took, and early stopping, which goes back to the best weights, does not take back images.
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
        self._filled = 0  # what the reservoir holds, known without asking the device
        self._passing: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    @property
    def graph_safe(self) -> bool:
        """False if the buffer grows from step to step."""
        return not self.config.faithful

    @property
    def running(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("reservoir.*",) if self.config.faithful else ()

    # ------------------------------------------------------------------ one batch

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        labels, generator = batch.labels, batch.generator
        kept, count = self.reservoir, min(self._filled, len(labels))
        first, second = (self._draw(count, generator) for _ in range(2))
        # The network treats each image alone, so the three passes of the paper are one here.
        images = [batch.images]
        if count:
            images.append(batch.augment(kept.images[torch.cat([first, second])]))
        logits, once, again = self(torch.cat(images)).split([len(labels), count, count])
        losses = {"ce": F.cross_entropy(logits, labels)}
        if count:
            losses["logits"] = self.config.alpha * F.mse_loss(once, kept.logits[first])
            losses["labels"] = self.config.beta * F.cross_entropy(again, kept.labels[second])
        if self.config.faithful:
            draws = torch.rand(len(labels), generator=generator, device=labels.device)
            self._passing = (self.backbone.pixels(batch.images), labels, logits.detach(), draws)
        return losses

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` different places of the reservoir."""
        device = self.reservoir.labels.device
        return torch.rand(self._filled, generator=generator, device=device).argsort()[:count]

    def after_step(self) -> None:
        if self._passing is not None:
            self.reservoir.add(*self._passing)
            self._passing = None
            self._filled = len(self.reservoir)

    # ------------------------------------------------------------------ stages

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        self._filled = len(self.reservoir)
        return super().begin_stage(number, train)

    @torch.no_grad()
    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        if not self.config.faithful:
            generator = self.randomness.generator("reservoir", number)
            for images, labels in train:
                draws = torch.rand(len(labels), dtype=torch.float64, generator=generator)
                self.reservoir.add(self.backbone.pixels(images), labels, self(images), draws)
        return {"kept": len(self.reservoir)}

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        super().restore(state, stage)
        self._filled = len(self.reservoir)

    def stored(self) -> list[Asset]:
        size, count = tensor_bytes(self.reservoir), len(self.reservoir)
        return [Asset("images, labels and logits of past domains", "images", size, count)]
