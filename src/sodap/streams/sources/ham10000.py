"""`ham10000`: dermoscopic images from Vienna and Queensland, often several per lesion."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.compact import is_compact, read_compact
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.listing import first_existing, images_by_stem
from sodap.streams.sources.skin import CLASSES

TOTALS = {
    "nv": 6705,
    "mel": 1113,
    "bkl": 1099,
    "bcc": 514,
    "akiec": 327,
    "vasc": 142,
    "df": 115,
}

# As in the paper, only melanoma is malignant; carcinomas (bcc, akiec) count as benign.
DIAGNOSES = {dx: "malignant" if dx == "mel" else "benign" for dx in TOTALS}


def read(root: Path) -> list[Item]:
    """Read HAM10000_metadata and the two folders of images, or the compact layout."""
    if is_compact(root):
        return read_compact(root, "dx", DIAGNOSES, group="lesion")
    names = ("HAM10000_metadata.csv", "HAM10000_metadata", "HAM10000_metadata.tab")
    labels = first_existing(root, *names)
    first = root / "HAM10000_images_part_1"
    files = images_by_stem([first, root / "HAM10000_images_part_2"])
    items = []
    for row in read_rows(labels, ["lesion_id", "image_id", "dx"]):
        diagnosis = row.one_of(row["dx"], DIAGNOSES)
        image = row["image_id"]
        path = files.get(image, first / f"{image}.jpg")
        items.append(Item(path, DIAGNOSES[diagnosis], diagnosis, group=row["lesion_id"]))
    return items


register_source(
    Source(
        name="ham10000",
        title="HAM10000",
        classes=CLASSES,
        licence="CC BY-NC-SA 4.0",
        citation="Tschandl et al., The HAM10000 dataset, a large collection of multi-source "
        "dermatoscopic images of common pigmented skin lesions, Scientific Data 5, 2018",
        advice="get it from https://doi.org/10.7910/DVN/DBW86T and unpack it so that "
        "ham10000/HAM10000_metadata.csv, ham10000/HAM10000_images_part_1/ID.jpg and "
        "ham10000/HAM10000_images_part_2/ID.jpg exist, or make ham10000/labels.csv "
        "(image, dx, lesion) and ham10000/images",
        read=read,
        totals=TOTALS,
    )
)
