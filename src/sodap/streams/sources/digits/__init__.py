"""`digits`: one task, the digits 0 to 9, met in four worlds; drawn in memory, nothing to download.

    handwriting   real scans, ink on paper
    print         many typefaces, scanned
    display       seven segments and dot matrices
    street        house numbers on cluttered walls

Every image follows from its place in the stream alone, so a smaller stream is the beginning of the
larger one, and the same everywhere.
"""

from __future__ import annotations

import numpy as np
import torch

from sodap.streams.registry import register_stream
from sodap.streams.sources.digits import display, handwriting, printed, street
from sodap.streams.sources.digits.canvas import Draw, Slot, SplitName
from sodap.streams.stream import Domain, Split, Stream

CLASSES = tuple("0123456789")

DOMAINS: dict[str, Draw] = {
    "handwriting": handwriting.draw,
    "print": printed.draw,
    "display": display.draw,
    "street": street.draw,
}


def _split(draw: Draw, name: SplitName, size: int) -> Split:
    """The first `size` images `[size, 3, 32, 32]` of a split."""
    slots = [Slot(name, number) for number in range(size)]
    images = np.stack([draw(slot) for slot in slots]).transpose(0, 3, 1, 2)
    labels = torch.tensor([slot.digit for slot in slots])
    return Split(torch.from_numpy(np.ascontiguousarray(images)), labels)


def _stream(name: str, train: int, val: int, test: int) -> Stream:
    domains = tuple(
        Domain(
            domain,
            train=_split(draw, "train", train),
            val=_split(draw, "val", val),
            test=_split(draw, "test", test),
            classes=CLASSES,
        )
        for domain, draw in DOMAINS.items()
    )
    return Stream(name, CLASSES, domains)


@register_stream("digits")
def digits() -> Stream:
    """Digits in four domains (handwriting, print, display, street) of 700 / 200 / 400 images."""
    return _stream("digits", train=700, val=200, test=400)


@register_stream("digits-mini")
def digits_mini() -> Stream:
    """The first 60 / 30 / 30 images of each domain of `digits`, to try things out on."""
    return _stream("digits-mini", train=60, val=30, test=30)
