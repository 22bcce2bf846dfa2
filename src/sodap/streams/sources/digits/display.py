"""`display`: digits on seven-segment and dot-matrix displays, LED or LCD."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

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

SEED = 103

# Segments from the top, clockwise, then the middle bar: a b c d e f g.
SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
# Some displays draw 6 and 9 without a tail, or 7 with a left stroke.
OTHER_SEGMENTS = {6: "fgedc", 7: "fabc", 9: "abcfg"}

# Five columns by seven rows, row by row; "#" is a lit dot.
DOTS = (
    ".###.#...##...##...##...##...#.###.",
    "..#...##....#....#....#....#...###.",
    ".###.#...#....#...#...#...#...#####",
    "#####...#...#.....#.....##...#.###.",
    "...#...##..#.#.#..#.#####...#....#.",
    "######....####.....#....##...#.###.",
    "..##..#...#....####.#...##...#.###.",
    "#####....#...#...#...#....#....#...",
    ".###.#...##...#.###.#...##...#.###.",
    ".###.#...##...#.####....#...#..##..",
)

GLOWS = np.array(
    [[255, 46, 30], [90, 255, 90], [255, 170, 40], [70, 220, 255], [90, 130, 255], [250, 250, 240]],
    np.float64,
)
LCDS = np.array([[158, 176, 132], [176, 184, 156], [140, 168, 120], [188, 196, 120]], np.float64)

LEFT, RIGHT, TOP, MIDDLE, BOTTOM = 28.0, 68.0, 13.0, 48.0, 83.0


def _seven_segments(digit: int, ghost: int, rng: np.random.Generator) -> Image.Image:
    """Canvas mask with lit segments at 255 and unlit ones at `ghost`."""
    half = rng.uniform(3.5, 6.0)
    gap = rng.uniform(0.5, 2.5)
    ends = {
        "a": (LEFT, TOP, RIGHT, TOP),
        "b": (RIGHT, TOP, RIGHT, MIDDLE),
        "c": (RIGHT, MIDDLE, RIGHT, BOTTOM),
        "d": (LEFT, BOTTOM, RIGHT, BOTTOM),
        "e": (LEFT, MIDDLE, LEFT, BOTTOM),
        "f": (LEFT, TOP, LEFT, MIDDLE),
        "g": (LEFT, MIDDLE, RIGHT, MIDDLE),
    }
    lit = SEGMENTS[digit]
    if digit in OTHER_SEGMENTS and rng.random() < 0.3:
        lit = OTHER_SEGMENTS[digit]
    mask = Image.new("L", (CANVAS, CANVAS))
    pen = ImageDraw.Draw(mask)
    for name, (x0, y0, x1, y1) in ends.items():
        along = np.array([x1 - x0, y1 - y0]) / np.hypot(x1 - x0, y1 - y0)
        across = half * np.array([-along[1], along[0]])
        start = np.array([x0, y0]) + gap * along
        end = np.array([x1, y1]) - gap * along
        hexagon = [
            start,
            start + half * along + across,
            end - half * along + across,
            end,
            end - half * along - across,
            start + half * along - across,
        ]
        pen.polygon([(x, y) for x, y in hexagon], fill=255 if name in lit else ghost)
    if rng.random() < 0.3:  # the decimal point
        x, y = RIGHT + 13, BOTTOM
        point = 255 if rng.random() < 0.5 else ghost
        pen.ellipse([x - half, y - half, x + half, y + half], fill=point)
    return mask


def _dot_matrix(digit: int, ghost: int, rng: np.random.Generator) -> Image.Image:
    """Canvas mask of 5 × 7 round or square dots, lit at 255 and unlit at `ghost`."""
    pitch = rng.uniform(10.0, 11.5)
    radius = pitch * rng.uniform(0.34, 0.5)
    mask = Image.new("L", (CANVAS, CANVAS))
    pen = ImageDraw.Draw(mask)
    dot = pen.ellipse if rng.random() < 0.6 else pen.rectangle
    for index, state in enumerate(DOTS[digit]):
        x = CANVAS / 2 + (index % 5 - 2) * pitch
        y = CANVAS / 2 + (index // 5 - 3) * pitch
        dot([x - radius, y - radius, x + radius, y + radius], fill=255 if state == "#" else ghost)
    return mask


def _glowing(lit: Floats, bleeding: Floats, rng: np.random.Generator) -> Floats:
    """Light on dark; the colour glows around the segments, whose centres are nearly white."""
    colour = rng.choice(GLOWS) * rng.uniform(0.75, 1.0)
    dark = rng.uniform(4, 34, 3) + 6 * ramp(rng)
    glow = np.clip(lit + rng.uniform(0.15, 0.6) * bleeding, 0, 1)
    heart = rng.uniform(0, 0.45) * lit**3
    return blend(blend(dark, colour, glow), np.full(3, 255.0), heart)


def _liquid_crystal(lit: Floats, bleeding: Floats, rng: np.random.Generator) -> Floats:
    """Dark on a greenish plate, with a soft shadow."""
    plate = rng.choice(LCDS) + rng.uniform(-25, 20) + rng.uniform(4, 22) * ramp(rng)
    shadow = np.roll(bleeding, (1, 1), axis=(0, 1))
    plate = plate * (1 - rng.uniform(0.05, 0.3) * shadow)
    return blend(plate, np.array([34.0, 40.0, 38.0]), rng.uniform(0.7, 0.95) * lit)


def draw(slot: Slot) -> Pixels:
    """Draw the image `[32, 32, 3]` of a slot."""
    rng = slot.rng(SEED)
    ghost = int(rng.integers(0, 48))
    shape = _seven_segments if rng.random() < 0.6 else _dot_matrix
    panel = place(
        shape(slot.digit, ghost, rng),
        scale=rng.uniform(0.75, 1.12),
        angle=rng.uniform(-5, 5),
        slant=rng.uniform(-0.03, 0.22),
        shift=(rng.uniform(-8, 8), rng.uniform(-6, 6)),
    )
    bleeding = reduced(panel.filter(ImageFilter.GaussianBlur(rng.uniform(4, 9))))
    colours = _glowing if rng.random() < 0.75 else _liquid_crystal
    return developed(colours(reduced(panel), bleeding, rng), rng, noise=rng.uniform(1, 6))
