"""Contact sheets: small copies of images in one JPEG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from sodap.errors import SodapError
from sodap.streams.grey import NO_RANGES, GreyRanges
from sodap.streams.images import decode_image, read_file
from sodap.streams.items import PlannedDomain

COLUMNS = 10
MAX_BYTES = 200_000
"""Largest sheet, so that a page with eleven of them can be sent by mail."""

_SIDE = 88
_GAP = 4


def contact_sheet(
    domain: PlannedDomain, classes: Sequence[str], ranges: GreyRanges = NO_RANGES
) -> bytes:
    """JPEG with one row per class, its images spread evenly over the files."""
    rows = []
    for label in classes:
        paths = sorted(item.path for item in domain.items if item.label == label)
        step = max(1, len(paths) // COLUMNS)
        rows.append(paths[::step][:COLUMNS])
    return _sheet(rows, COLUMNS, ranges)


def pair_sheet(pairs: Sequence[tuple[Path, Path]], ranges: GreyRanges = NO_RANGES) -> bytes | None:
    """JPEG of up to 20 pairs, five per row; None without pairs."""
    chosen = pairs[:20]
    rows = [[path for pair in chosen[k : k + 5] for path in pair] for k in range(0, len(chosen), 5)]
    return _sheet(rows, COLUMNS, ranges) if rows else None


def _sheet(rows: Sequence[Sequence[Path]], columns: int, ranges: GreyRanges) -> bytes:
    pitch = _SIDE + _GAP
    sheet = Image.new("RGB", (columns * pitch - _GAP, max(len(rows), 1) * pitch - _GAP), "#808080")
    for down, row in enumerate(rows):
        for across, path in enumerate(row):
            try:
                pixels = decode_image(read_file(path), path, _SIDE, ranges)
            except SodapError:  # listed as unreadable; stays a grey square here
                continue
            tile = Image.fromarray(pixels.transpose(1, 2, 0))
            sheet.paste(tile, (across * pitch, down * pitch))
    for quality in (80, 60, 40, 20):
        file = io.BytesIO()
        sheet.save(file, "JPEG", quality=quality, optimize=True)
        if file.tell() <= MAX_BYTES:
            break
    return file.getvalue()
