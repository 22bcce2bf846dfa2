"""`idrid`: photographs of the retina from one eye clinic in Nanded, India."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.compact import is_compact, read_compact
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.listing import one_of
from sodap.streams.sources.retinopathy import CLASSES, STAGES

# Folder of the images and label file of each split.
SPLITS = {
    "train": ("a. Training Set", "a. IDRiD_Disease Grading_Training Labels.csv"),
    "test": ("b. Testing Set", "b. IDRiD_Disease Grading_Testing Labels.csv"),
}


def read(root: Path) -> list[Item]:
    """`B. Disease Grading`, or the compact layout with grade and official_split."""
    if is_compact(root):
        return read_compact(root, "grade", STAGES)
    # The archive holds this folder; some tools strip the outermost one.
    images = one_of(root, "B. Disease Grading/1. Original Images", "1. Original Images")
    items = []
    for split, (folder, labels) in SPLITS.items():
        file = images.parent / "2. Groundtruths" / labels
        for row in read_rows(file, ["Image name", "Retinopathy grade"]):
            grade = row.known(row["Retinopathy grade"], STAGES)
            # Both sets count from IDRiD_001: only the folder tells them apart.
            path = images / folder / f"{row['Image name']}.jpg"
            items.append(Item(path, STAGES[grade], grade, split=split))
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
