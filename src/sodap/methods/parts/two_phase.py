"""Base class of methods that answer in one way while a stage is trained and in another after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sodap.methods.base import Method, MethodConfig
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class TwoPhaseMethod(Method):
    """Knows whether its present stage is still in training, also after it was loaded."""

    ended: Tensor  # number of finished stages, []

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.register_buffer("ended", torch.zeros((), dtype=torch.int64))
        self._ended = 0  # on the host: a training step must not wait for the device

    @property
    def in_training(self) -> bool:
        """Whether the present stage has not ended; True before the first one, too."""
        return self.stage > self._ended or self._ended == 0

    def finish(self, number: int) -> None:
        """Note that stage `number` has ended."""
        self.ended.fill_(number)
        self._ended = number

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        super().restore(state, stage)
        self._ended = int(self.ended)
