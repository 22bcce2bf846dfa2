"""`deepdrid` and `deepdrid_uwf`: one challenge, an ordinary and an ultra-wide-field camera."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.compact import is_compact, read_compact
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.retinopathy import CLASSES, STAGES, UNGRADABLE

# Folder and label file of each split; the labels of the test set came later, as a spreadsheet.
REGULAR = {
    "train": ("regular-fundus-training", "regular-fundus-training.csv"),
    "val": ("regular-fundus-validation", "regular-fundus-validation.csv"),
    "test": ("Online-Challenge1&2-Evaluation", "Challenge1_labels.xlsx"),
}
ULTRA_WIDE = {
    "train": ("ultra-widefield-training", "ultra-widefield-training.csv"),
    "val": ("ultra-widefield-validation", "ultra-widefield-validation.csv"),
    "test": ("Online-Challenge3-Evaluation", "Challenge3_labels.xlsx"),
}

# An image shows one eye and only that eye's column is filled in. The file's name is no guide to
# which: eleven images named _l or _r are graded in the other eye's column.
GRADES = ("left_eye_DR_Level", "right_eye_DR_Level", "DR_level", "DR_Levels", "UWF_DR_Levels")


def read_regular(root: Path) -> list[Item]:
    """regular_fundus_images/, or the compact layout with grade and patient."""
    if is_compact(root):
        return read_compact(root, "grade", STAGES, group="patient")
    return list(_read_splits(root / "regular_fundus_images", REGULAR))


def read_ultra_wide(root: Path) -> list[Item]:
    """ultra-widefield_images/, or the compact layout with grade and patient."""
    if is_compact(root):
        return read_compact(root, "grade", STAGES, group="patient")
    return list(_read_splits(root / "ultra-widefield_images", ULTRA_WIDE))


def _read_splits(root: Path, splits: dict[str, tuple[str, str]]) -> Iterator[Item]:
    """SPLIT/Images/PATIENT/PATIENT_l1.jpg; the paths in the label files do not exist."""
    for split, (folder, labels) in splits.items():
        for row in read_rows(root / folder / labels, ["image_id"]):
            grade = row.known(row.first(*GRADES), (*STAGES, UNGRADABLE))
            if grade != UNGRADABLE:
                patient = row["image_id"].partition("_")[0]
                path = root / folder / "Images" / patient / f"{row['image_id']}.jpg"
                yield Item(path, STAGES[grade], grade, group=patient, split=split)


LICENCE = "CC BY-SA 4.0"
CITATION = (
    "Liu et al., DeepDRiD: Diabetic retinopathy - grading and image quality estimation challenge, "
    "Patterns 3(6), 2022"
)
PLACE = "https://github.com/deepdrdoc/DeepDRiD"

register_source(
    Source(
        name="deepdrid",
        title="DeepDRiD, regular fundus images",
        classes=CLASSES,
        licence=LICENCE,
        citation=CITATION,
        advice=f"get it from {PLACE} and put the folder regular_fundus_images into deepdrid, or "
        "make deepdrid/labels.csv (image, grade, patient) and deepdrid/images",
        read=read_regular,
        totals={"0": 914, "1": 222, "2": 398, "3": 354, "4": 112},
    )
)
register_source(
    Source(
        name="deepdrid_uwf",
        title="DeepDRiD, ultra-wide-field images",
        classes=CLASSES,
        licence=LICENCE,
        citation=CITATION,
        advice=f"get it from {PLACE} and put the folder ultra-widefield_images into deepdrid_uwf, "
        "or make deepdrid_uwf/labels.csv (image, grade, patient) and deepdrid_uwf/images",
        read=read_ultra_wide,
        totals={"0": 74, "1": 73, "2": 69, "3": 28, "4": 4},
    )
)
