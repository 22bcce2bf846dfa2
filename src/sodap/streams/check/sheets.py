"""Contact sheets: a glance at the images says more than their counts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from sodap.errors import SodapError
from sodap.streams.images import read_image
from sodap.streams.plans import PlannedDomain

COLUMNS = 10
LIMIT = 200_000
"""Bytes of a sheet, so that a page with eleven of them can be sent by mail."""

_SIDE = 88
_GAP = 4


def contact_sheet(domain: PlannedDomain, classes: Sequence[str]) -> bytes:
    """A row a class, evenly spread over its files; a JPEG."""
    rows = []
    for label in classes:
        paths = sorted(item.path for item in domain.items if item.label == label)
        step = max(1, len(paths) // COLUMNS)
        rows.append(paths[::step][:COLUMNS])
    return _sheet(rows, COLUMNS)


def pair_sheet(pairs: Sequence[tuple[Path, Path]]) -> bytes | None:
    """Up to 20 pairs, five to a row."""
    chosen = pairs[:20]
    rows = [[path for pair in chosen[k : k + 5] for path in pair] for k in range(0, len(chosen), 5)]
    return _sheet(rows, COLUMNS) if rows else None


def _sheet(rows: Sequence[Sequence[Path]], columns: int) -> bytes:
    pitch = _SIDE + _GAP
    sheet = Image.new("RGB", (columns * pitch - _GAP, max(len(rows), 1) * pitch - _GAP), "#808080")
    for down, row in enumerate(rows):
        for across, path in enumerate(row):
            try:
                pixels = read_image(path, _SIDE).permute(1, 2, 0).numpy()
            except SodapError:  # it is on the list of unreadable files; here it stays a grey square
                continue
            sheet.paste(Image.fromarray(pixels), (across * pitch, down * pitch))
    for quality in (80, 60, 40, 20):
        file = io.BytesIO()
        sheet.save(file, "JPEG", quality=quality, optimize=True)
        if file.tell() <= LIMIT:
            break
    return file.getvalue()
