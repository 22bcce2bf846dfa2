"""Draw the domains of the `digits` streams."""

from __future__ import annotations

import numpy as np
import torch

from sodap.streams.items import SplitName
from sodap.streams.sources.digits import display, handwriting, printed, street
from sodap.streams.sources.digits.canvas import Draw, Slot
from sodap.streams.stream import Domain, Split, Stream

CLASSES = tuple("0123456789")

DOMAINS: dict[str, Draw] = {
    "handwriting": handwriting.draw,
    "print": printed.draw,
    "display": display.draw,
    "street": street.draw,
}


def draw_split(draw: Draw, name: SplitName, size: int) -> Split:
    """Draw the first `size` images `[size, 3, 32, 32]` of a split."""
    slots = [Slot(name, number) for number in range(size)]
    images = np.stack([draw(slot) for slot in slots]).transpose(0, 3, 1, 2)
    labels = torch.tensor([slot.digit for slot in slots])
    return Split(torch.from_numpy(np.ascontiguousarray(images)), labels)


def draw_stream(name: str, train: int, val: int, test: int) -> Stream:
    """Draw a stream with this many images per split in each domain."""
    domains = tuple(
        Domain(
            domain,
            train=draw_split(draw, "train", train),
            val=draw_split(draw, "val", val),
            test=draw_split(draw, "test", test),
            classes=CLASSES,
        )
        for domain, draw in DOMAINS.items()
    )
    return Stream(name, CLASSES, domains)
