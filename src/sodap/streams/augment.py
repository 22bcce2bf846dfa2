"""Random augmentation of a batch, computed on its device from a given generator.

Every image draws one row of random numbers, one per possible transform in the order of `_DRAWS`,
whether the transform is enabled or not. So a setting changes its own transform and no other draw.
The result depends on the generator and on the position in the batch, not on other images.

Order: flips, then rotation, zoom and shift in one resampling, then brightness, contrast and
saturation. Pixels from outside of the image repeat its border.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.streams.augmentation import Augmentation

_COLOURS = ("brightness", "contrast", "saturation")
_DRAWS = (
    *("hflip", "vflip"),
    *("rotate", "shift_x", "shift_y", "zoom", "place_x", "place_y"),
    *_COLOURS,
)

_BLOCK = 1 << 17
"""Pixels per CPU core and block, so that a block stays in its cache: two images at 224."""

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601)."""


def augment(
    settings: Augmentation,
    images: Tensor,
    generator: torch.Generator,
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """uint8 `[B, 3, H, W]` -> augmented images of the same shape, float in [0, 1].

    With flips only, images stay uint8, which is four times less to move. `prepare` is the model's
    preprocessing of each image. On a CPU it is called on blocks that fit into the cache, since
    otherwise both steps are limited by memory bandwidth.
    """
    if settings == Augmentation():
        return images if prepare is None else prepare(images)
    draws = torch.rand(len(images), len(_DRAWS), device=images.device, generator=generator)
    parameters = _parameters(settings, draws, *images.shape[-2:])
    only_flips = settings == Augmentation(hflip=settings.hflip, vflip=settings.vflip)
    size = len(images) if only_flips else _block_size(images)

    def view(block: slice) -> Tensor:
        part = {name: rows[block] for name, rows in parameters.items()}
        augmented = _transform(images[block], part)
        return augmented if prepare is None else prepare(augmented)

    if len(images) <= size:
        return view(slice(None))
    for start in range(0, len(images), size):
        block = slice(start, start + size)
        ready = view(block)
        if start == 0:  # the shape after `prepare` is not known before
            views = ready.new_empty(len(images), *ready.shape[1:])
        views[block] = ready
    return views


def _block_size(images: Tensor) -> int:
    """Images per block; on a GPU, all of them."""
    if images.device.type != "cpu":
        return len(images)
    high, wide = images.shape[-2:]
    return max(1, _BLOCK // (high * wide)) * torch.get_num_threads()


def _parameters(settings: Augmentation, draws: Tensor, high: int, wide: int) -> dict[str, Tensor]:
    """The parameters `[B, ...]` of each enabled transform, by name."""
    draw = {name: row.view(-1, 1, 1, 1) for name, row in zip(_DRAWS, draws.T, strict=True)}
    parameters = {
        name: 1 + largest * _signed(draw[name])
        for name in _COLOURS
        if (largest := getattr(settings, name))
    }
    if settings.rotate or settings.shift or settings.zoom < 1:
        parameters["columns"], parameters["rows"] = _sampling_grid(settings, draw, high, wide)
    else:
        flips = [name for name in ("hflip", "vflip") if getattr(settings, name)]
        parameters |= {name: draw[name] < 0.5 for name in flips}
    return parameters


def _sampling_grid(
    settings: Augmentation, draw: dict[str, Tensor], high: int, wide: int
) -> tuple[Tensor, Tensor]:
    """Where each output pixel is sampled in the image, as (x, y) from -1 to 1.

    The position is the sum of a term per column, `[B, 2, 1, W]`, and one per row, `[B, 2, H, 1]`.
    """
    side = 1 - (1 - settings.zoom) * draw["zoom"]
    angle = (_signed(draw["rotate"]) * settings.rotate).deg2rad()
    cos, sin = side * angle.cos(), side * angle.sin()
    # A crop lies anywhere inside of the image; the shift may then move it beyond the border.
    x = (1 - side) * _signed(draw["place_x"]) + 2 * settings.shift * _signed(draw["shift_x"])
    y = (1 - side) * _signed(draw["place_y"]) + 2 * settings.shift * _signed(draw["shift_y"])
    # One step right, one step down and the centre, each as (x, y) `[B, 2, 1, 1]`. The factors
    # keep angles right in pixels if the image is not square.
    right = torch.cat([cos, sin * (wide / high)], 1)
    down = torch.cat([-sin * (high / wide), cos], 1)
    centre = torch.cat([x, y], 1)
    flip = torch.ones_like(centre)
    if settings.hflip:
        flip[:, 0] -= 2.0 * (draw["hflip"][:, 0] < 0.5)
    if settings.vflip:
        flip[:, 1] -= 2.0 * (draw["vflip"][:, 0] < 0.5)
    columns = (flip * right) * _pixel_centres(wide, centre).view(1, 1, 1, wide)
    rows = (flip * down) * _pixel_centres(high, centre).view(1, 1, high, 1)
    return columns, rows + flip * centre


def _transform(images: Tensor, parameters: dict[str, Tensor]) -> Tensor:
    if "columns" in parameters:
        grid = (parameters["columns"] + parameters["rows"]).permute(0, 2, 3, 1)  # [B, H, W, 2]
        views = F.grid_sample(
            images.float().div_(255), grid, padding_mode="border", align_corners=False
        ).clamp_(0, 1)
    else:
        for name, dim in (("hflip", -1), ("vflip", -2)):
            if name in parameters:
                images = _flip(images, parameters[name], dim)
        if not parameters.keys() & set(_COLOURS):
            return images
        views = images.float().div_(255)
    if "brightness" in parameters:
        views = views.mul_(parameters["brightness"]).clamp_(0, 1)
    if "contrast" in parameters:
        grey = _grey(views).mean((-2, -1), keepdim=True)
        views = _scale_from(grey, views, parameters["contrast"])
    if "saturation" in parameters:
        views = _scale_from(_grey(views), views, parameters["saturation"])
    return views


def _signed(draw: Tensor) -> Tensor:
    """Map uniform numbers from [0, 1) to [-1, 1)."""
    return 2 * draw - 1


def _pixel_centres(count: int, like: Tensor) -> Tensor:
    """The centres of `count` pixels that fill -1 to 1."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) * 2 + 1) / count - 1


def _flip(images: Tensor, chosen: Tensor, dim: int) -> Tensor:
    """Flip the chosen images; bit operations, since `torch.where` on bytes is ten times slower."""
    flipped = images.flip(dim)
    flipped ^= images
    flipped &= chosen.to(torch.uint8) * 255
    flipped ^= images
    return flipped


def _grey(images: Tensor) -> Tensor:
    """`[B, 1, H, W]`."""
    red, green, blue = (images[:, c : c + 1] * weight for c, weight in enumerate(_LUMA))
    return red + green + blue


def _scale_from(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Scale the difference of `images` from `base` by `factor`."""
    return base.lerp(images, factor).clamp_(0, 1)
