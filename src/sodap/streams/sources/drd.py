"""`drd`: retina photographs of 17,563 patients, both eyes, from EyePACS clinics in the USA."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.retinopathy import CLASS_OF_GRADE, CLASSES


def read(root: Path) -> list[Item]:
    """Read trainLabels.csv (image, level); images are train/PATIENT_left.jpeg and _right.jpeg."""
    items = []
    for row in read_rows(root / "trainLabels.csv", ["image", "level"]):
        grade = row.one_of(row["level"], CLASS_OF_GRADE)
        patient, _, eye = row["image"].rpartition("_")
        if not patient or eye not in ("left", "right"):
            raise row.error(f"the image '{row['image']}' is not named PATIENT_left or _right")
        path = root / "train" / f"{row['image']}.jpeg"
        items.append(Item(path, CLASS_OF_GRADE[grade], grade, group=patient))
    return items


register_source(
    Source(
        name="drd",
        title="Diabetic Retinopathy Detection (EyePACS)",
        classes=CLASSES,
        licence="rules of the Kaggle competition, accepted on download",
        citation="EyePACS and California Healthcare Foundation, Diabetic Retinopathy Detection, "
        "Kaggle, 2015",
        advice="get it from https://www.kaggle.com/c/diabetic-retinopathy-detection and unpack it "
        "so that drd/trainLabels.csv and drd/train/PATIENT_left.jpeg exist",
        read=read,
        totals={"0": 25810, "1": 2443, "2": 5292, "3": 873, "4": 708},
    )
)
