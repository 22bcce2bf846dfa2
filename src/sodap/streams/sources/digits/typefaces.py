"""Digits in the typefaces that come with matplotlib: DejaVu, STIX and Computer Modern.

A typeface is a font file and the code point of its zero, since STIX has several alphabets
(sans-serif, monospaced, double-struck) in one file. Fonts without regular digits are left out.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from sodap.streams.items import SplitName
from sodap.streams.sources.digits.canvas import LETTER_HEIGHT

_PLAIN, _DOUBLE_STRUCK, _SANS, _SANS_BOLD, _MONO = 0x30, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6


class Typeface(NamedTuple):
    """A design of the ten digits."""

    file: str
    zero: int = _PLAIN


# Disjoint: no test image of any domain shows a typeface of a training image.
TYPEFACES: dict[SplitName, tuple[Typeface, ...]] = {
    "train": (
        Typeface("DejaVuSans.ttf"),
        Typeface("DejaVuSans-Bold.ttf"),
        Typeface("DejaVuSans-Oblique.ttf"),
        Typeface("DejaVuSans-BoldOblique.ttf"),
        Typeface("DejaVuSans.ttf", _DOUBLE_STRUCK),
        Typeface("DejaVuSerif.ttf"),
        Typeface("DejaVuSerif-Bold.ttf"),
        Typeface("DejaVuSerif-Italic.ttf"),
        Typeface("DejaVuSerif-BoldItalic.ttf"),
        Typeface("STIXGeneral.ttf"),
        Typeface("STIXGeneralBol.ttf"),
        Typeface("STIXGeneralItalic.ttf"),
        Typeface("STIXGeneralBolIta.ttf"),
        Typeface("STIXGeneral.ttf", _DOUBLE_STRUCK),
        Typeface("cmr10.ttf"),
        Typeface("cmti10.ttf"),
    ),
    "val": (
        Typeface("cmb10.ttf"),
        Typeface("DejaVuSerif.ttf", _DOUBLE_STRUCK),
        Typeface("STIXGeneral.ttf", _SANS),
        Typeface("STIXGeneral.ttf", _SANS_BOLD),
    ),
    "test": (
        Typeface("cmss10.ttf"),
        Typeface("cmtt10.ttf"),
        Typeface("DejaVuSansMono.ttf"),
        Typeface("DejaVuSansMono-Bold.ttf"),
        Typeface("DejaVuSansMono-Oblique.ttf"),
        Typeface("DejaVuSansMono-BoldOblique.ttf"),
        Typeface("STIXGeneral.ttf", _MONO),
    ),
}


@cache
def _font(file: str) -> ImageFont.FreeTypeFont:
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / file
    # The basic layout does not depend on the libraries that Pillow was built with.
    return ImageFont.truetype(path, 120, layout_engine=ImageFont.Layout.BASIC)


@cache
def glyph(typeface: Typeface, digit: int) -> Image.Image:
    """Mask of a digit, cropped to its ink, `LETTER_HEIGHT` pixels high."""
    font = _font(typeface.file)
    text = chr(typeface.zero + digit)
    left, top, right, bottom = (int(edge) for edge in font.getbbox(text))
    mask = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(mask).text((-left, -top), text, fill=255, font=font)
    width = max(1, round(mask.width * LETTER_HEIGHT / mask.height))
    return mask.resize((width, LETTER_HEIGHT), Image.Resampling.LANCZOS)
