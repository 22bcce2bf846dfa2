"""`deepdrid` and `deepdrid_uwf`: one challenge, regular and ultra-wide-field retina cameras."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.compact import is_compact, read_compact
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.retinopathy import CLASS_OF_GRADE, CLASSES, UNGRADABLE

# Split -> folder and label file; the labels of the test set are in a spreadsheet.
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

# An image shows one eye, and only that eye's column is filled in. The file name does not tell
# which: eleven images named _l or _r are graded in the other eye's column.
GRADE_COLUMNS = (
    *("left_eye_DR_Level", "right_eye_DR_Level"),
    *("DR_level", "DR_Levels", "UWF_DR_Levels"),
)


def read_regular(root: Path) -> list[Item]:
    """Read regular_fundus_images/, or the compact layout (grade, patient)."""
    return _read(root, "regular_fundus_images", REGULAR)


def read_ultra_wide(root: Path) -> list[Item]:
    """Read ultra-widefield_images/, or the compact layout (grade, patient)."""
    return _read(root, "ultra-widefield_images", ULTRA_WIDE)


def _read(root: Path, camera: str, splits: dict[str, tuple[str, str]]) -> list[Item]:
    """Images are SPLIT/Images/PATIENT/PATIENT_l1.jpg; the paths in the label files are wrong."""
    if is_compact(root):
        return read_compact(root, "grade", CLASS_OF_GRADE, group="patient")
    items = []
    for split, (name, labels) in splits.items():
        folder = root / camera / name
        for row in read_rows(folder / labels, ["image_id"]):
            grade = row.one_of(row.first_filled(*GRADE_COLUMNS), (*CLASS_OF_GRADE, UNGRADABLE))
            if grade != UNGRADABLE:
                patient = row["image_id"].partition("_")[0]
                path = folder / "Images" / patient / f"{row['image_id']}.jpg"
                items.append(Item(path, CLASS_OF_GRADE[grade], grade, group=patient, split=split))
    return items


PLACE = "https://github.com/deepdrdoc/DeepDRiD"

DEEPDRID = register_source(
    Source(
        name="deepdrid",
        title="DeepDRiD, regular fundus images",
        classes=CLASSES,
        licence="CC BY-SA 4.0",
        citation="Liu et al., DeepDRiD: Diabetic retinopathy - grading and image quality "
        "estimation challenge, Patterns 3(6), 2022",
        advice=f"get it from {PLACE} and put the folder regular_fundus_images into deepdrid, or "
        "make deepdrid/labels.csv (image, grade, patient) and deepdrid/images",
        read=read_regular,
        totals={"0": 914, "1": 222, "2": 398, "3": 354, "4": 112},
    )
)
register_source(
    replace(
        DEEPDRID,
        name="deepdrid_uwf",
        title="DeepDRiD, ultra-wide-field images",
        advice=f"get it from {PLACE} and put the folder ultra-widefield_images into deepdrid_uwf, "
        "or make deepdrid_uwf/labels.csv (image, grade, patient) and deepdrid_uwf/images",
        read=read_ultra_wide,
        totals={"0": 74, "1": 73, "2": 69, "3": 28, "4": 4},
    )
)
