"""`aptos2019`: retina photographs from rural India, taken with several cameras."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.retinopathy import CLASS_OF_GRADE, CLASSES


def read(root: Path) -> list[Item]:
    """Read train.csv (id_code, diagnosis); the test images have no public labels."""
    items = []
    for row in read_rows(root / "train.csv", ["id_code", "diagnosis"]):
        grade = row.one_of(row["diagnosis"], CLASS_OF_GRADE)
        path = root / "train_images" / f"{row['id_code']}.png"
        items.append(Item(path, CLASS_OF_GRADE[grade], grade))
    return items


register_source(
    Source(
        name="aptos2019",
        title="APTOS 2019 Blindness Detection",
        classes=CLASSES,
        licence="rules of the Kaggle competition, accepted on download",
        citation="Asia Pacific Tele-Ophthalmology Society, APTOS 2019 Blindness Detection, "
        "Kaggle, 2019",
        advice="get it from https://www.kaggle.com/c/aptos2019-blindness-detection and unpack it "
        "so that aptos2019/train.csv and aptos2019/train_images/ID.png exist",
        read=read,
        totals={"0": 1805, "1": 370, "2": 999, "3": 193, "4": 295},
    )
)
