"""The compact layout, for small copies of large data sets: images/ and one labels.csv.

The column `image` names the file; `official_split` is the authors' split where they made one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sodap.streams.items import Item
from sodap.streams.sources.labels import read_rows

LABELS = "labels.csv"


def is_compact(root: Path) -> bool:
    return (root / LABELS).is_file()


def read_compact(
    root: Path, column: str, labels: Mapping[str, str], group: str | None = None
) -> list[Item]:
    """Items with the label map `labels` of a `column`, grouped by another."""
    items = []
    for row in read_rows(root / LABELS, ["image", column, *([group] if group else [])]):
        original = row.known(row[column], labels)
        items.append(
            Item(
                root / "images" / row["image"],
                labels[original],
                original,
                group=row[group] if group else None,
                split=row.split("official_split"),
            )
        )
    return items
