"""`street`: photographs of house numbers on cluttered walls, tilted and in bad light."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from sodap.streams.sources.digits.canvas import (
    CANVAS,
    LETTER_HEIGHT,
    SIDE,
    Floats,
    Pixels,
    Slot,
    blend,
    developed,
    place,
    ramp,
    reduced,
)
from sodap.streams.sources.digits.typefaces import TYPEFACES, Typeface, glyph

SEED = 104


def _number(digit: int, typeface: Typeface, rng: np.random.Generator) -> Image.Image:
    """A digit with neighbours, as in a longer house number; the border will cut them off."""
    letter = glyph(typeface, digit)
    strip = Image.new("L", (3 * CANVAS, LETTER_HEIGHT + 6))
    middle = strip.width // 2
    strip.paste(letter, (middle - letter.width // 2, 3))
    reach = max(letter.width // 2 + int(rng.integers(5, 14)), 26)
    for side in (-1, 1):
        if rng.random() < 0.6:
            neighbour = glyph(typeface, int(rng.integers(10)))
            left = middle + reach if side > 0 else middle - reach - neighbour.width
            strip.paste(neighbour, (left, 3))
    return strip


def _mottle(rng: np.random.Generator, cells: int, strength: float) -> Floats:
    """Low-frequency noise with a little colour, `[32, 32, 3]`."""
    small = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
    large = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float64)
    noise: Floats = strength * (0.3 * large + 0.7 * large[..., :1] - 127.5) / 255
    return noise


def _wall(colour: Floats, rng: np.random.Generator) -> Floats:
    """A wall `[32, 32, 3]` of one colour with stains and, usually, boards or bricks."""
    wall = colour + rng.uniform(5, 40) * ramp(rng) + _mottle(rng, int(rng.integers(3, 7)), 70)
    wall = wall + _mottle(rng, 16, rng.uniform(0, 50))
    pattern = rng.random()
    depth = rng.uniform(-40, 40)
    row, column = np.mgrid[0:SIDE, 0:SIDE].astype(np.float64)
    pitch = rng.uniform(5, 12)
    phase = rng.uniform(0, pitch)
    if pattern < 0.4:  # boards in any direction
        angle = rng.uniform(0, np.pi)
        seam = (np.cos(angle) * column + np.sin(angle) * row + phase) % pitch < 1.2
    elif pattern < 0.7:  # bricks: every second row is shifted by half a brick
        course = (row + phase) // pitch
        upright = (column + course % 2 * pitch) % (2 * pitch) < 1
        seam = upright | ((row + phase) % pitch < 1)
    else:
        return wall
    seamed: Floats = wall - depth * seam[..., None]
    return seamed


def _paint(wall: Floats, rng: np.random.Generator) -> Floats:
    """A colour that differs from the wall in brightness, sometimes only slightly."""
    brightness = float(wall.mean())
    contrast = rng.uniform(52, 140)
    down, up = brightness - 15, 240 - brightness  # largest possible changes
    brighter = rng.random() < 0.5 if min(down, up) > contrast else up > down
    colour = brightness + (contrast if brighter else -contrast) + rng.uniform(-35, 35, 3)
    return np.clip(colour, 0, 255)


def draw(slot: Slot) -> Pixels:
    """Draw the image `[32, 32, 3]` of a slot, in a typeface of its split."""
    rng = slot.rng(SEED)
    typefaces = TYPEFACES[slot.split]
    strip = _number(slot.digit, typefaces[rng.integers(len(typefaces))], rng)
    number = place(
        strip,
        scale=rng.uniform(0.68, 1.12),
        angle=rng.uniform(-16, 16),
        slant=rng.uniform(-0.25, 0.25),
        shift=(rng.uniform(-8, 8), rng.uniform(-8, 8)),
        # The strip is three canvases wide, so its corners must move far to have an effect.
        tilt=rng.uniform(-1, 1, (4, 2)) * [34, 17],
    )
    wall = _wall(rng.uniform(50, 205) + rng.normal(0, 24, 3), rng)
    painted = _paint(wall, rng)
    letters = reduced(number)
    relief = reduced(number.filter(ImageFilter.GaussianBlur(3)))
    fall = (int(rng.integers(-2, 3)), int(rng.integers(-2, 3)))
    scene = wall * (1 - rng.uniform(0, 0.5) * np.roll(relief, fall, axis=(0, 1)))
    scene = blend(scene, painted + _mottle(rng, 6, 40), rng.uniform(0.8, 1.0) * letters)
    scene = scene * (1 + rng.uniform(0, 0.35) * ramp(rng))
    if rng.random() < 0.4:  # a shadow across the wall
        edge = np.clip(4 * ramp(rng) + rng.uniform(-2, 2), 0, 1)
        scene = scene * (1 - rng.uniform(0.2, 0.5) * edge)
    if rng.random() < 0.25:  # a twig or a wire in front
        across = ramp(rng) + rng.uniform(-0.5, 0.5)
        wire = np.abs(across) < 0.05
        scene = blend(scene, np.full(3, rng.uniform(10, 160)), wire.astype(np.float64))
    photo = Image.fromarray(np.clip(scene, 0, 255).astype(np.uint8))
    photo = photo.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.05)))
    return developed(np.asarray(photo, np.float64), rng, noise=rng.uniform(3, 15))
