"""Random views of a batch, drawn on the device from a given generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor


class Augmentation(BaseModel):
    """What may happen to a training image; every image of a batch gets its own draw."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hflip: bool = Field(False, description="mirror left and right, every second time")
    vflip: bool = Field(False, description="mirror top and bottom, every second time")
    rotate: float = Field(0.0, ge=0, le=180, description="turn by up to this many degrees")
    shift: float = Field(0.0, ge=0, le=0.5, description="move by up to this part of the side")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 `[B, 3, H, W]` -> float in [0, 1] of the same shape."""
        images = images.float() / 255
        batch, device = len(images), images.device

        def draw(low: float, high: float) -> Tensor:
            return torch.empty(batch, device=device).uniform_(low, high, generator=generator)

        if self.hflip:
            images = torch.where(draw(0, 1).view(-1, 1, 1, 1) < 0.5, images.flip(-1), images)
        if self.vflip:
            images = torch.where(draw(0, 1).view(-1, 1, 1, 1) < 0.5, images.flip(-2), images)
        if self.rotate or self.shift:
            angle = draw(-self.rotate, self.rotate).deg2rad()
            across, down = (
                draw(-2 * self.shift, 2 * self.shift),
                draw(-2 * self.shift, 2 * self.shift),
            )
            cos, sin = angle.cos(), angle.sin()
            turn = torch.stack([cos, -sin, across, sin, cos, down], 1).view(-1, 2, 3)
            grid = F.affine_grid(turn, list(images.shape), align_corners=False)
            images = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        return images
