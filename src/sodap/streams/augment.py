"""Random views of a batch, drawn on the device from a given generator.

Every image draws one row of numbers, one for each thing that may happen, in the order of `_DRAWS`,
whether it may happen or not. So a setting changes what it is about and no other draw. A view
depends on the generator and on the image's place in the batch, and on no other image.

In the order of events: mirror, then turn, zoom and shift in one resampling, then brightness,
contrast and saturation. What comes into view from outside repeats the border.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

_COLOURS = ("brightness", "contrast", "saturation")
_DRAWS = (
    *("hflip", "vflip"),
    *("rotate", "shift_x", "shift_y", "zoom", "place_x", "place_y"),
    *_COLOURS,
)

_BLOCK = 1 << 17
"""Pixels that one core takes at a time, so that they stay in its cache: two images at 224."""

_GREY = (0.299, 0.587, 0.114)
"""How bright red, green and blue appear (ITU-R BT.601)."""


def _as_they_are(views: Tensor) -> Tensor:
    return views


class Augmentation(BaseModel):
    """What may happen to a training image; every image of a batch gets its own draw."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hflip: bool = Field(False, description="mirror left and right, every second time")
    vflip: bool = Field(False, description="mirror top and bottom, every second time")
    rotate: float = Field(0.0, ge=0, le=180, description="turn by up to this many degrees")
    shift: float = Field(0.0, ge=0, le=0.5, description="move by up to this part of the side")
    zoom: float = Field(
        1.0, gt=0, le=1, description="fill the view with a part whose side is at least this long"
    )
    brightness: float = Field(0.0, ge=0, le=1, description="largest relative change")
    contrast: float = Field(0.0, ge=0, le=1, description="largest relative change")
    saturation: float = Field(0.0, ge=0, le=1, description="largest relative change")

    def __call__(
        self,
        images: Tensor,
        generator: torch.Generator,
        prepare: Callable[[Tensor], Tensor] = _as_they_are,
    ) -> Tensor:
        """uint8 `[B, 3, H, W]` -> views of the same shape, float in [0, 1], then prepared.

        Where nothing is to be done but to mirror, views stay uint8: four times less to move.
        `prepare` is what the model wants done to each view by itself. On a processor it gets a few
        floats at a time, while they lie in the cache: otherwise both would wait for memory.
        """
        if self == Augmentation():
            return prepare(images)
        draws = torch.rand(len(images), len(_DRAWS), device=images.device, generator=generator)
        plan = self._plan(draws, *images.shape[-2:])
        only_mirrored = self == Augmentation(hflip=self.hflip, vflip=self.vflip)
        size = len(images) if only_mirrored else _block_size(images)
        if len(images) <= size:
            return prepare(self._view(images, plan))
        for start in range(0, len(images), size):
            block = slice(start, start + size)
            part = {name: rows[block] for name, rows in plan.items()}
            ready = prepare(self._view(images[block], part))
            if start == 0:  # only now is it known what `prepare` makes of a view
                views = ready.new_empty(len(images), *ready.shape[1:])
            views[block] = ready
        return views

    def _plan(self, draws: Tensor, high: int, wide: int) -> dict[str, Tensor]:
        """What is done to each image, by name, `[B, ...]`; what is not done has no name."""
        draw = {name: row.view(-1, 1, 1, 1) for name, row in zip(_DRAWS, draws.T, strict=True)}
        plan = {
            name: _factor(draw[name], largest)
            for name in _COLOURS
            if (largest := getattr(self, name))
        }
        if self.rotate or self.shift or self.zoom < 1:
            plan["across"], plan["along"] = self._aim(draw, high, wide)
        else:
            plan |= {name: draw[name] < 0.5 for name in ("hflip", "vflip") if getattr(self, name)}
        return plan

    def _view(self, images: Tensor, plan: dict[str, Tensor]) -> Tensor:
        if "across" in plan:
            # Where each pixel of a view looks in its image, `[B, H, W, 2]`.
            grid = (plan["across"] + plan["along"]).permute(0, 2, 3, 1)
            views = F.grid_sample(
                images.float().div_(255), grid, padding_mode="border", align_corners=False
            ).clamp_(0, 1)
        else:
            for name, dim in (("hflip", -1), ("vflip", -2)):
                if name in plan:
                    images = _mirrored(images, plan[name], dim)
            if not plan.keys() & set(_COLOURS):
                return images
            views = images.float().div_(255)
        if "brightness" in plan:
            views = views.mul_(plan["brightness"]).clamp_(0, 1)
        if "contrast" in plan:
            grey = _grey(views).mean((-2, -1), keepdim=True)
            views = _away(views, grey, plan["contrast"])
        if "saturation" in plan:
            views = _away(views, _grey(views), plan["saturation"])
        return views

    def _aim(self, draw: dict[str, Tensor], high: int, wide: int) -> tuple[Tensor, Tensor]:
        """Where the pixels of a view look in its image, from -1 to 1 as (x, y).

        The place is the sum of what a column, `[B, 2, 1, W]`, and a row, `[B, 2, H, 1]`, say.
        """
        side = 1 - (1 - self.zoom) * draw["zoom"]
        angle = (_signed(draw["rotate"]) * self.rotate).deg2rad()
        cos, sin = side * angle.cos(), side * angle.sin()
        # A part of the image lies anywhere inside it; a shift then moves it, even over the border.
        x = (1 - side) * _signed(draw["place_x"]) + 2 * self.shift * _signed(draw["shift_x"])
        y = (1 - side) * _signed(draw["place_y"]) + 2 * self.shift * _signed(draw["shift_y"])
        # A step right, a step down and the middle of the view, each as (x, y) `[B, 2, 1, 1]`.
        # Angles are true in pixels, also where the image is not square.
        right = torch.cat([cos, sin * (wide / high)], 1)
        down = torch.cat([-sin * (high / wide), cos], 1)
        middle = torch.cat([x, y], 1)
        mirror = torch.ones_like(middle)
        if self.hflip:
            mirror[:, 0] -= 2.0 * (draw["hflip"][:, 0] < 0.5)
        if self.vflip:
            mirror[:, 1] -= 2.0 * (draw["vflip"][:, 0] < 0.5)
        across = (mirror * right) * _centres(wide, middle).view(1, 1, 1, wide)
        along = (mirror * down) * _centres(high, middle).view(1, 1, high, 1)
        return across, along + mirror * middle


PAPER_AUGMENTATION = Augmentation(hflip=True, vflip=True, rotate=8)
"""What the paper's authors do to their training images."""


def _block_size(images: Tensor) -> int:
    """How many images to take at a time; on a GPU, all of them."""
    if images.device.type != "cpu":
        return len(images)
    high, wide = images.shape[-2:]
    return max(1, _BLOCK // (high * wide)) * torch.get_num_threads()


def _signed(draw: Tensor) -> Tensor:
    """[0, 1) -> [-1, 1)."""
    return 2 * draw - 1


def _factor(draw: Tensor, largest: float) -> Tensor:
    return 1 + largest * _signed(draw)


def _centres(count: int, like: Tensor) -> Tensor:
    """The middles of `count` pixels that fill -1 to 1."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) * 2 + 1) / count - 1


def _mirrored(images: Tensor, chosen: Tensor, dim: int) -> Tensor:
    """Flip the chosen ones; with bits, since `torch.where` on bytes takes ten times as long."""
    mirrored = images.flip(dim)
    mirrored ^= images
    mirrored &= chosen.to(torch.uint8) * 255
    mirrored ^= images
    return mirrored


def _grey(images: Tensor) -> Tensor:
    """`[B, 1, H, W]`."""
    red, green, blue = (images[:, c : c + 1] * weight for c, weight in enumerate(_GREY))
    return red + green + blue


def _away(images: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    """Stretch the distance of `images` from `base` by `factor`."""
    return base.lerp(images, factor).clamp_(0, 1)
