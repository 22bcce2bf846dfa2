"""Sheets of sample images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from sodap.reporting.figures.style import WIDTH, no_lines, styled, x_labels
from sodap.runs.evidence import DomainRouting
from sodap.streams import Split, Stream

COLUMNS = 10
"""Most images in a row of samples."""
THUMBNAIL = 48
"""Largest side of an image in pixels, to keep pages small."""
GAP = 3
CLASS_GAP = 12
"""Pixels between two classes, if there are several images per class."""


@styled
def samples(stream: Stream) -> Figure:
    """Test images of each domain (rows) and class (columns)."""
    classes = stream.classes[:COLUMNS]
    per_class = max(1, COLUMNS // len(classes))
    gap = CLASS_GAP if per_class > 1 else GAP
    strips = []
    for domain in stream.domains:
        images, labels = domain.test.images, domain.test.labels
        tiles = [_tiles(images[labels == label][:per_class]) for label in range(len(classes))]
        strips.append(np.hstack([_side_by_side(each, per_class, gap) for each in tiles]))
    sheet = np.vstack(strips)
    height, width, _ = sheet.shape
    figure = Figure(figsize=(WIDTH, 0.3 + 0.82 * WIDTH * height / width))
    axes = figure.add_subplot()
    axes.imshow(sheet, interpolation="none")
    middles = (np.arange(len(classes)) + 0.5) * width / len(classes) - gap / 2
    x_labels(axes, middles, classes, slant=0)
    names = [domain.name for domain in stream.domains]
    axes.set_yticks((np.arange(len(names)) + 0.5) * height / len(names), labels=names)
    no_lines(axes)
    return figure


@styled
def routed_images(split: Split, routed: DomainRouting, classes: Sequence[str]) -> Figure:
    """Images whose routing is drawn: one column per class."""
    assert routed.shown is not None
    assert routed.shown_classes is not None
    labels = routed.shown_classes.tolist()
    present = list(dict.fromkeys(labels))
    tiles = _tiles(split.images[routed.shown])
    per_class = max(labels.count(label) for label in present)
    columns = []
    for label in present:
        own = tiles[np.array(labels) == label]
        columns.append(_side_by_side(own.swapaxes(1, 2), per_class, GAP).swapaxes(0, 1))
    sheet = np.hstack(columns)
    inches = min(0.75, WIDTH / len(present))
    figure = Figure(figsize=(WIDTH, 0.4 + per_class * inches))
    axes = figure.add_subplot()
    axes.imshow(sheet, interpolation="none")
    names = [classes[label] for label in present]
    slant = 40 if max(map(len, names)) * 0.09 > inches else 0
    middles = (np.arange(len(present)) + 0.5) * sheet.shape[1] / len(present)
    x_labels(axes, middles, names, slant=slant)
    axes.set_yticks([])
    no_lines(axes)
    return figure


def _tiles(images: Tensor) -> NDArray[np.uint8]:
    """Images `[N, 3, H, W]` as opaque thumbnails `[N, side, side, 4]`."""
    side = min(images.shape[-1], THUMBNAIL)
    if len(images):
        small = F.interpolate(images.float(), (side, side), mode="bicubic", antialias=True)
        images = small.round().clamp(0, 255).byte()
    tiles = np.full((len(images), side, side, 4), 255, np.uint8)
    tiles[..., :3] = images[..., :side, :side].permute(0, 2, 3, 1).numpy()
    return tiles


def _side_by_side(tiles: NDArray[np.uint8], count: int, gap: int) -> NDArray[np.uint8]:
    """Tiles `[n ≤ count, side, side, 4]` in a row for `count`, clear where one is missing.

    `GAP` clear pixels follow below and between tiles, and `gap` after the last.
    """
    side = tiles.shape[1]
    strip = np.zeros((side + GAP, count * (side + GAP) - GAP + gap, 4), np.uint8)
    for place, tile in enumerate(tiles):
        start = place * (side + GAP)
        strip[:side, start : start + side] = tile
    return strip
