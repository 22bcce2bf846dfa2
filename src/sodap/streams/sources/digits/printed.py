"""`print`: digits in many typefaces on a scanned page."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from sodap.streams.sources.digits.canvas import (
    LETTER_HEIGHT,
    SIDE,
    Pixels,
    Slot,
    blend,
    developed,
    place,
    ramp,
    reduced,
)
from sodap.streams.sources.digits.typefaces import TYPEFACES, glyph

SEED = 102

INKS = np.array([[12, 12, 12], [44, 40, 38], [70, 52, 36], [96, 20, 20]], np.float64)
PAPERS = np.array([[252, 252, 252], [232, 220, 188], [206, 202, 194], [240, 226, 214]], np.float64)


def _pressed(mask: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Sometimes thicken or thin the letter, as with too much or too little ink."""
    pressing = rng.random()
    if pressing < 0.2:
        return mask.filter(ImageFilter.MaxFilter(5))
    if pressing < 0.3:
        return mask.filter(ImageFilter.MinFilter(3))
    return mask


def draw(slot: Slot) -> Pixels:
    """Draw the image `[32, 32, 3]` of a slot, in a typeface of its split."""
    rng = slot.rng(SEED)
    typefaces = TYPEFACES[slot.split]
    letter = glyph(typefaces[rng.integers(len(typefaces))], slot.digit)
    framed = Image.new("L", (letter.width + 8, LETTER_HEIGHT + 8))
    framed.paste(letter, (4, 4))
    printed = place(
        _pressed(framed, rng),
        scale=rng.uniform(0.55, 1.1),
        angle=rng.uniform(-9, 9),
        shift=(rng.uniform(-8, 8), rng.uniform(-7, 7)),
    )
    page = rng.choice(PAPERS) + rng.uniform(-10, 2) + rng.uniform(2, 10) * ramp(rng)
    # Holes, as from worn type and dry ink.
    holes = rng.random((SIDE, SIDE, 1)) < rng.uniform(0, 0.35)
    coverage = reduced(printed) * (1 - 0.7 * holes)
    # Scanner rows of slightly different brightness, and grey noise.
    rows = rng.normal(0, 2.5, (SIDE, 1, 1)) + rng.normal(0, rng.uniform(2, 16), (SIDE, SIDE, 1))
    ink = rng.choice(INKS) + rng.uniform(0, 90)
    return developed(blend(page, ink, coverage) + rows, rng, noise=1.0)
