"""Drawing tools that all domains share: slots, warps and colours.

Shapes are drawn as masks on a canvas of three times the image's size and then reduced, which
antialiases them. Colour is applied at 32 × 32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sodap.streams.items import SPLITS, SplitName

SIDE = 32
SUPERSAMPLING = 3
CANVAS = SIDE * SUPERSAMPLING
LETTER_HEIGHT = 66  # of a digit on the canvas before warping

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Slot:
    """The position of an image in a domain, which determines everything about the image."""

    split: SplitName
    number: int

    @property
    def digit(self) -> int:
        """Digits alternate, so that the first images of a split are balanced."""
        return self.number % 10

    def rng(self, domain_seed: int) -> np.random.Generator:
        """The image's own generator, so that an image does not depend on those drawn before it."""
        return np.random.default_rng([domain_seed, SPLITS.index(self.split), self.number])


Draw = Callable[[Slot], Pixels]
"""Draws the image `[32, 32, 3]` of a slot."""


def place(
    mask: Image.Image,
    *,
    scale: float = 1.0,
    angle: float = 0.0,
    slant: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
    tilt: Floats | None = None,
) -> Image.Image:
    """Warp a mask of any size onto the centre of a canvas.

    `angle` is in degrees, `slant` in widths per height, `shift` in canvas pixels. `tilt` `[4, 2]`
    moves the four corners independently, which gives a perspective. The centre of the mask lands
    in the centre of the canvas, plus `shift`.
    """
    width, height = mask.size
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float64)
    cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    linear = scale * np.array([[cos, -sin], [sin, cos]]) @ np.array([[1.0, -slant], [0.0, 1.0]])
    moved = (corners - [width / 2, height / 2]) @ linear.T
    if tilt is not None:
        moved = moved + tilt
        moved = moved - _crossing(moved)
    moved = moved + CANVAS / 2 + np.asarray(shift)
    return mask.transform(
        (CANVAS, CANVAS),
        Image.Transform.PERSPECTIVE,
        _homography(moved, corners),
        resample=Image.Resampling.BILINEAR,
    )


def _crossing(corners: Floats) -> Floats:
    """Intersection `[2]` of the diagonals of a quadrilateral `[4, 2]`: the image of the centre."""
    one, other = corners[2] - corners[0], corners[3] - corners[1]
    between = corners[1] - corners[0]
    along = between[0] * other[1] - between[1] * other[0]
    meeting: Floats = corners[0] + one * along / (one[0] * other[1] - one[1] * other[0])
    return meeting


def _homography(source: Floats, target: Floats) -> list[float]:
    """The eight coefficients of the perspective that maps `source` `[4, 2]` to `target`."""
    equations = np.zeros((8, 8))
    equations[0::2, 0:2] = equations[1::2, 3:5] = source
    equations[0::2, 2] = equations[1::2, 5] = 1
    equations[0::2, 6:8] = -target[:, :1] * source
    equations[1::2, 6:8] = -target[:, 1:] * source
    coefficients: list[float] = np.linalg.solve(equations, target.ravel()).tolist()
    return coefficients


def reduced(mask: Image.Image) -> Floats:
    """A canvas mask as coverage `[32, 32, 1]` between 0 and 1."""
    return np.asarray(mask.reduce(SUPERSAMPLING), dtype=np.float64)[..., None] / 255


def blend(under: Floats, over: Floats, coverage: Floats) -> Floats:
    """Paint `over` on `under` with opacity `coverage` `[32, 32, 1]`; colours `[..., 3]`."""
    return under + (over - under) * coverage


def ramp(rng: np.random.Generator) -> Floats:
    """A linear gradient in a random direction, `[32, 32, 1]`, from -1 to 1."""
    angle = rng.uniform(0, 2 * np.pi)
    line = np.linspace(-1, 1, SIDE)
    gradient = np.cos(angle) * line[None, :] + np.sin(angle) * line[:, None]
    scaled: Floats = gradient[..., None] / np.abs(gradient).max()
    return scaled


def developed(colours: Floats, rng: np.random.Generator, noise: float) -> Pixels:
    """Add noise of standard deviation `noise` to colours (0 to 255) and round to uint8."""
    grain = rng.normal(0, noise, colours.shape)
    return np.clip(np.rint(colours + grain), 0, 255).astype(np.uint8)
