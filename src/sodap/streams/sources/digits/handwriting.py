"""`handwriting`: scans of real handwritten digits, ink on paper.

The scans come with scikit-learn (1797 of the UCI "Optical Recognition of Handwritten Digits" set)
and are 8 × 8 pixels. They are enlarged smoothly and then sharpened to look like pen strokes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from PIL import Image, ImageDraw

from sodap.streams.sources.digits.canvas import (
    CANVAS,
    Floats,
    Pixels,
    Slot,
    blend,
    developed,
    place,
    ramp,
    reduced,
)

SEED = 101
# Each digit has 174 scans or more; each split uses its own range of them.
FIRST_SCAN = {"train": 0, "val": 70, "test": 90}

INKS = np.array([[28, 30, 36], [30, 44, 110], [22, 34, 84], [70, 70, 76], [92, 36, 44]], np.float64)
PAPERS = np.array([[246, 244, 236], [238, 230, 208], [250, 250, 250], [226, 232, 238]], np.float64)
RULES = np.array([[168, 190, 222], [222, 176, 176], [196, 200, 204]], np.float64)


@cache
def _scans() -> list[Floats]:
    """The scans `[M, 8, 8]` of each digit, values 0 to 16, in a fixed random order."""
    from sklearn.datasets import load_digits  # slow to import

    scans, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(digits))
    scans, digits = scans[order].reshape(-1, 8, 8), digits[order]
    return [scans[digits == digit] for digit in range(10)]


def _strokes(scan: Floats) -> Image.Image:
    """Enlarge a scan to 84 × 84 and sharpen its edges."""
    small = Image.fromarray(np.rint(scan * 255 / 16).astype(np.uint8))
    soft = np.asarray(small.resize((84, 84), Image.Resampling.BICUBIC), np.float64) / 255
    ink = np.clip((soft - 0.28) / 0.34, 0, 1)
    return Image.fromarray(np.rint(255 * ink).astype(np.uint8))


def _ruled(rng: np.random.Generator) -> Image.Image:
    """Lines or a grid as on school paper."""
    mask = Image.new("L", (CANVAS, CANVAS))
    pen = ImageDraw.Draw(mask)
    pitch = int(rng.integers(33, 60))
    offset = int(rng.integers(0, pitch))
    grid = rng.random() < 0.4
    for at in range(offset, CANVAS, pitch):
        pen.line([(0, at), (CANVAS, at)], fill=255, width=2)
        if grid:
            pen.line([(at, 0), (at, CANVAS)], fill=255, width=2)
    return mask


def draw(slot: Slot) -> Pixels:
    """Draw the image `[32, 32, 3]` of a slot; each scan is used once."""
    rng = slot.rng(SEED)
    scan = _scans()[slot.digit][FIRST_SCAN[slot.split] + slot.number // 10]
    page = rng.choice(PAPERS) + rng.uniform(-8, 4) + 6 * ramp(rng)
    if rng.random() < 0.5:
        page = blend(page, rng.choice(RULES), 0.8 * reduced(_ruled(rng)))
    written = place(
        _strokes(scan),
        scale=rng.uniform(0.92, 1.08),
        angle=rng.uniform(-4, 4),
        shift=(rng.uniform(-4, 4), rng.uniform(-4, 4)),
    )
    pressure = rng.uniform(0.78, 1.0)
    return developed(blend(page, rng.choice(INKS), pressure * reduced(written)), rng, noise=2.5)
