"""Lists of train, val and test images that the paper's authors published for their DR data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sodap.streams.items import SPLITS, Item
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.retinopathy import CLASS_OF_GRADE
from sodap.streams.splits import MatchedItems, SplitRow

LIST_COLUMNS = {
    "aptos": ("id_code", "diagnosis"),
    "ddr": ("id_code", "diagnosis"),
    "drd": ("image", "level"),
}
"""Domain -> the columns with image and grade in the files DOMAIN_{train,val,test}.csv."""


def read_list_rows(folder: Path) -> list[SplitRow]:
    """Read all lists; the images themselves are not needed.

    The path of a row is the file name without its suffix. Patients are known only for drd, whose
    images are named PATIENT_left and PATIENT_right.
    """
    rows: dict[tuple[str, str], SplitRow] = {}
    for domain, (name_column, grade_column) in LIST_COLUMNS.items():
        for split in SPLITS:
            for row in read_rows(folder / f"{domain}_{split}.csv", [name_column, grade_column]):
                image = Path(row[name_column]).stem
                grade = row.one_of(row[grade_column], CLASS_OF_GRADE)
                if (domain, image) in rows:
                    raise row.error(f"the image {image} is listed for the second time")
                patient = image.rpartition("_")[0] if domain == "drd" else ""
                label = CLASS_OF_GRADE[grade]
                rows[domain, image] = SplitRow(domain, image, label, grade, patient, split)
    return list(rows.values())


def read_paper_lists(folder: Path) -> dict[str, dict[str, str]]:
    """Domain -> image id -> split."""
    lists: dict[str, dict[str, str]] = {domain: {} for domain in LIST_COLUMNS}
    for row in read_list_rows(folder):
        lists[row.domain][row.path] = row.split
    return lists


def match_list(items: Sequence[Item], splits: Mapping[str, str]) -> MatchedItems:
    """The items whose file name without suffix is in `splits` (image id -> split)."""
    found = [item for item in items if item.path.stem in splits]
    return MatchedItems(
        items=found,
        splits=[splits[item.path.stem] for item in found],
        missing=len(splits) - len({item.path.stem for item in found}),
    )
