"""The compact layout for small copies of large data sets: images/ and labels.csv.

The column `image` is the file name; the optional `official_split` is the authors' split.
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
    """Read items from labels.csv.

    `column` holds the original label, which `labels` maps to the class; `group` names the column
    with the patient or lesion.
    """
    items = []
    for row in read_rows(root / LABELS, ["image", column, *([group] if group else [])]):
        original = row.one_of(row[column], labels)
        items.append(
            Item(
                root / "images" / row["image"],
                labels[original],
                original,
                group=row[group] if group else None,
                split=row.split_name("official_split"),
            )
        )
    return items
