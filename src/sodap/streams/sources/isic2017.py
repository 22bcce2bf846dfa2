"""`isic2017`: dermoscopic images of the ISIC 2017 challenge, part 3."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.compact import is_compact, read_compact
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.skin import CLASS_OF_TARGET, CLASSES

SPLIT_NAMES = {"train": "Training", "val": "Validation", "test": "Test_v2"}


def read(root: Path) -> list[Item]:
    """Read ISIC-2017_SPLIT_Part3_GroundTruth.csv for each split, or the compact layout."""
    if is_compact(root):
        return read_compact(root, "malignant", CLASS_OF_TARGET)
    items = []
    for split, name in SPLIT_NAMES.items():
        labels = root / f"ISIC-2017_{name}_Part3_GroundTruth.csv"
        for row in read_rows(labels, ["image_id", "melanoma"]):
            melanoma = row.one_of(row["melanoma"], CLASS_OF_TARGET)
            path = root / f"ISIC-2017_{name}_Data" / f"{row['image_id']}.jpg"
            items.append(Item(path, CLASS_OF_TARGET[melanoma], melanoma, split=split))
    return items


register_source(
    Source(
        name="isic2017",
        title="ISIC 2017, lesion classification",
        classes=CLASSES,
        licence="CC-0",
        citation="Codella et al., Skin lesion analysis toward melanoma detection: a challenge at "
        "the 2017 International Symposium on Biomedical Imaging, ISBI, 2018",
        advice="get the data and the ground truth of part 3 from "
        "https://challenge.isic-archive.com/data/#2017 and unpack them so that "
        "isic2017/ISIC-2017_Training_Data/ID.jpg and "
        "isic2017/ISIC-2017_Training_Part3_GroundTruth.csv exist, and the same for Validation and "
        "Test_v2, or make isic2017/labels.csv (image, malignant, official_split) and "
        "isic2017/images",
        read=read,
        totals={"0": 2229, "1": 521},
    )
)
