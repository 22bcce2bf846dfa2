"""`idrid`: retina photographs from one eye clinic in Nanded, India."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.compact import is_compact, read_compact
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.listing import first_existing
from sodap.streams.sources.retinopathy import CLASS_OF_GRADE, CLASSES

SPLIT_FILES = {
    "train": ("a. Training Set", "a. IDRiD_Disease Grading_Training Labels.csv"),
    "test": ("b. Testing Set", "b. IDRiD_Disease Grading_Testing Labels.csv"),
}
"""Split -> folder of the images, label file."""


def read(root: Path) -> list[Item]:
    """Read the folder `B. Disease Grading`, or the compact layout (grade, official_split)."""
    if is_compact(root):
        return read_compact(root, "grade", CLASS_OF_GRADE)
    # Some tools strip the outermost folder of the archive.
    images = first_existing(root, "B. Disease Grading/1. Original Images", "1. Original Images")
    items = []
    for split, (folder, labels) in SPLIT_FILES.items():
        file = images.parent / "2. Groundtruths" / labels
        for row in read_rows(file, ["Image name", "Retinopathy grade"]):
            grade = row.one_of(row["Retinopathy grade"], CLASS_OF_GRADE)
            # Both sets start at IDRiD_001 and differ only by the folder.
            path = images / folder / f"{row['Image name']}.jpg"
            items.append(Item(path, CLASS_OF_GRADE[grade], grade, split=split))
    return items


register_source(
    Source(
        name="idrid",
        title="IDRiD, disease grading",
        classes=CLASSES,
        licence="CC BY 4.0",
        citation="Porwal et al., Indian Diabetic Retinopathy Image Dataset (IDRiD), Data 3(3), "
        "2018",
        advice="get B. Disease Grading.zip from https://ieee-dataport.org/open-access/"
        "indian-diabetic-retinopathy-image-dataset-idrid and put the folder 'B. Disease Grading' "
        "into idrid, or make idrid/labels.csv (image, grade, official_split) and idrid/images",
        read=read,
        totals={"0": 168, "1": 25, "2": 168, "3": 93, "4": 62},
    )
)
