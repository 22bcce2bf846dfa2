"""Predictions batch by batch; on a GPU recorded, like a training step."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from sodap.learning.fusing import fused
from sodap.learning.precision import tensor_cores
from sodap.methods import Method
from sodap.recording import Recorded, filled
from sodap.streams import BatchLoader, Split

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Answers:
    """What a method said to N images."""

    classes: Tensor
    """`[N]`, by number."""
    confidence: Tensor
    """`[N]`, the probability of that class."""

    def broken(self) -> str | None:
        """What to say of answers that are no numbers, or nothing: their class would be made up."""
        lost = int(self.confidence.isnan().sum())
        if not lost:
            return None
        return f"the answers to {lost:,} of {len(self.confidence):,} images are no numbers"


@dataclass(frozen=True)
class PlainForward:
    """One batch after the other, launched anew every time."""

    method: Method
    fabric: Fabric

    def __call__(self, images: Tensor) -> Tensor:
        """Logits `[B, C]` of uint8 images `[B, 3, H, W]`."""
        with tensor_cores(self.fabric, self.method), self.fabric.autocast():
            logits: Tensor = self.method(self.method.backbone.prepare(images))
        return logits


class Forward:
    """Logits `[B, C]` of up to `size` uint8 images `[B, 3, H, W]`, while tensors stay in place.

    So it goes on through the epochs of a stage, whose steps change numbers only. What it answers
    is good until the next call. With `record=False` every batch is launched anew.
    """

    def __init__(
        self, method: Method, fabric: Fabric, size: int = EVALUATION_BATCH, *, record: bool = True
    ) -> None:
        self.method = method
        self.fabric = fabric
        self.size = size
        self.plain = PlainForward(method, fabric)
        self.records = record and fabric.device.type == "cuda" and method.graph_safe
        self._begin()

    def _begin(self) -> None:
        self.places = self._places()
        self.recorded = Recorded(self.plain, self.fabric.device, wanted=self.records)

    def _places(self) -> list[int]:
        """Where the numbers lie that a recording reads."""
        return [tensor.data_ptr() for tensor in self.method.state_dict().values()]

    @torch.inference_mode()
    def answers(self, split: Split) -> Answers:
        """To all images of a split, in their order."""
        if self.records and self._places() != self.places:
            self._begin()
        classes, confidence = [], []
        for images, _ in BatchLoader(split, self.size, self.fabric.device):
            logits = self(images)
            classes.append(logits.argmax(-1))
            confidence.append(logits.float().softmax(-1).amax(-1))
        return Answers(torch.cat(classes).cpu(), torch.cat(confidence).cpu())

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        self.method.eval()
        count = len(images)
        if not self.records or count > self.size or self._is_heard():
            with fused(count == self.size):
                return self.plain(images)
        return self.recorded(filled(images, self.size))[:count]

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        """A recording cannot be copied, so the copy of a learner makes its own."""
        method, fabric = copy.deepcopy(self.method, memo), copy.deepcopy(self.fabric, memo)
        return Forward(method, fabric, self.size, record=self.records)

    def _is_heard(self) -> bool:
        """A replay calls no module, so whoever listens to one would hear nothing."""
        return any(m._forward_hooks or m._forward_pre_hooks for m in self.method.modules())
