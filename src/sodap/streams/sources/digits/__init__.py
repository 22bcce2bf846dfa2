"""`digits`: the digits 0 to 9 in four domains, drawn in memory; nothing to download.

    handwriting   real scans, ink on paper
    print         many typefaces, scanned
    display       seven segments and dot matrices
    street        house numbers on cluttered walls

An image depends only on its position in the stream. So a smaller stream is the beginning of a
larger one, and the images are the same on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sodap.streams.registry import register_stream

if TYPE_CHECKING:
    from sodap.streams.stream import Stream

# torch and matplotlib are imported when a stream is drawn, not when its name is listed.


@register_stream("digits")
def digits() -> Stream:
    """Digits in four domains (handwriting, print, display, street) of 700 / 200 / 400 images."""
    from sodap.streams.sources.digits.drawing import draw_stream

    return draw_stream("digits", train=700, val=200, test=400)


@register_stream("digits-mini")
def digits_mini() -> Stream:
    """The first 60 / 30 / 30 images of each domain of `digits`, for quick trials."""
    from sodap.streams.sources.digits.drawing import draw_stream

    return draw_stream("digits-mini", train=60, val=30, test=30)
