"""`isic2020`: dermoscopic images of 2,056 patients from three continents, few with melanoma."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.compact import is_compact, read_compact
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.listing import first_existing
from sodap.streams.sources.skin import CLASS_OF_TARGET, CLASSES


def read(root: Path) -> list[Item]:
    """Read Kaggle's train.csv, the ISIC archive's ground truth, or the compact layout."""
    if is_compact(root):
        return read_compact(root, "malignant", CLASS_OF_TARGET, group="patient")
    labels = first_existing(
        root,
        "train.csv",
        "ISIC_2020_Training_GroundTruth.csv",
        "ISIC_2020_Training_GroundTruth_v2.csv",
    )
    images = first_existing(root, "train", "jpeg/train", "ISIC_2020_Training_JPEG/train")
    items = []
    for row in read_rows(labels, ["image_name", "patient_id", "target"]):
        target = row.one_of(row["target"], CLASS_OF_TARGET)
        path = images / f"{row['image_name']}.jpg"
        items.append(Item(path, CLASS_OF_TARGET[target], target, group=row["patient_id"]))
    return items


register_source(
    Source(
        name="isic2020",
        title="ISIC 2020 (SIIM-ISIC melanoma classification)",
        classes=CLASSES,
        licence="CC BY-NC 4.0",
        citation="Rotemberg et al., A patient-centric dataset of images and metadata for "
        "identifying melanomas using clinical context, Scientific Data 8, 2021",
        advice="get the training JPEGs and the ground truth from "
        "https://challenge.isic-archive.com/data/#2020 and put them so that "
        "isic2020/ISIC_2020_Training_GroundTruth.csv (or Kaggle's isic2020/train.csv) and "
        "isic2020/train/ID.jpg exist, or make isic2020/labels.csv (image, malignant, patient) and "
        "isic2020/images",
        read=read,
        totals={"0": 32542, "1": 584},
    )
)
