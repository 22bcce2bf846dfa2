"""`derm7pt`: dermoscopic images of an interactive atlas, one for each of 1,011 cases."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.listing import first_existing
from sodap.streams.sources.skin import CLASSES

TOTALS = {
    "basal cell carcinoma": 42,
    "blue nevus": 28,
    "clark nevus": 399,
    "combined nevus": 13,
    "congenital nevus": 17,
    "dermal nevus": 33,
    "dermatofibroma": 20,
    "lentigo": 24,
    "melanoma": 1,
    "melanoma (0.76 to 1.5 mm)": 53,
    "melanoma (in situ)": 64,
    "melanoma (less than 0.76 mm)": 102,
    "melanoma (more than 1.5 mm)": 28,
    "melanoma metastasis": 4,
    "melanosis": 16,
    "miscellaneous": 8,
    "recurrent nevus": 6,
    "reed or spitz nevus": 79,
    "seborrheic keratosis": 45,
    "vascular lesion": 29,
}

DIAGNOSES = {name: "malignant" if name.startswith("melanoma") else "benign" for name in TOTALS}

SPLIT_FILES = {"train": "train_indexes.csv", "val": "valid_indexes.csv", "test": "test_indexes.csv"}


def read(root: Path) -> list[Item]:
    """Read meta/meta.csv, whose column derm is a path in images/, and the split files."""
    meta = first_existing(root, "meta", "release_v0/meta")
    splits = _splits(meta)
    items = []
    rows = read_rows(meta / "meta.csv", ["case_num", "diagnosis", "derm"])
    for index, row in enumerate(rows):
        diagnosis = row.one_of(row["diagnosis"].lower(), DIAGNOSES)
        items.append(
            Item(
                meta.parent / "images" / row["derm"],
                DIAGNOSES[diagnosis],
                diagnosis,
                group=row["case_num"],
                split=splits.get(str(index)),
            )
        )
    return items


def _splits(meta: Path) -> dict[str, str]:
    """Row number in meta.csv, from 0 -> split."""
    return {
        row["indexes"]: split
        for split, file in SPLIT_FILES.items()
        for row in read_rows(meta / file, ["indexes"])
    }


register_source(
    Source(
        name="derm7pt",
        title="Seven-point checklist (Derm7pt), dermoscopic images",
        classes=CLASSES,
        licence="terms of the authors' site, accepted on download",
        citation="Kawahara et al., Seven-point checklist and skin lesion classification using "
        "multitask multimodal neural nets, IEEE J. Biomedical and Health Informatics 23(2), 2019",
        advice="get release_v0.zip from https://derm.cs.sfu.ca and unpack it so that "
        "derm7pt/meta/meta.csv, derm7pt/meta/train_indexes.csv, valid_indexes.csv and "
        "test_indexes.csv and the folder derm7pt/images exist",
        read=read,
        totals=TOTALS,
    )
)
