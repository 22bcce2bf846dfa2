"""Settings of the random augmentation of training images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Augmentation(BaseModel):
    """Random transforms of training images, drawn independently for each image."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hflip: bool = Field(False, description="flip left and right with probability 0.5")
    vflip: bool = Field(False, description="flip top and bottom with probability 0.5")
    rotate: float = Field(0.0, ge=0, le=180, description="largest rotation in degrees")
    shift: float = Field(0.0, ge=0, le=0.5, description="largest shift as a fraction of the side")
    zoom: float = Field(
        1.0, gt=0, le=1, description="smallest side of the crop as a fraction of the image's side"
    )
    brightness: float = Field(0.0, ge=0, le=1, description="largest relative change")
    contrast: float = Field(0.0, ge=0, le=1, description="largest relative change")
    saturation: float = Field(0.0, ge=0, le=1, description="largest relative change")

    def __call__(
        self,
        images: Tensor,
        generator: torch.Generator,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Augment uint8 images `[B, 3, H, W]` and apply `prepare`; see `sodap.streams.augment`."""
        from sodap.streams.augment import augment  # imports torch, which the settings do not need

        return augment(self, images, generator, prepare)


PAPER_AUGMENTATION = Augmentation(hflip=True, vflip=True, rotate=8)
"""The augmentation that the paper's authors use."""
