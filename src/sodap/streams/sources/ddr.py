"""`ddr`: retina photographs from 147 hospitals in China."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.labels import SPLIT_ALIASES, Row, read_text
from sodap.streams.sources.listing import first_existing
from sodap.streams.sources.retinopathy import CLASS_OF_GRADE, CLASSES, UNGRADABLE


def read(root: Path) -> list[Item]:
    """Read DR_grading/SPLIT.txt with lines `FILE GRADE`; images are DR_grading/SPLIT/FILE."""
    grading = first_existing(root, "DR_grading", "DDR-dataset/DR_grading")
    return [item for split in ("train", "valid", "test") for item in _read_split(grading, split)]


def _read_split(grading: Path, split: str) -> Iterator[Item]:
    file = grading / f"{split}.txt"
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        row = Row(file, f"line {number}", {})
        match line.split():
            case []:
                continue
            case [name, label]:
                grade = row.one_of(label, (*CLASS_OF_GRADE, UNGRADABLE))
            case _:
                raise row.error("expected a file name and a grade")
        if grade != UNGRADABLE:
            path = grading / split / name
            yield Item(path, CLASS_OF_GRADE[grade], grade, split=SPLIT_ALIASES[split])


register_source(
    Source(
        name="ddr",
        title="DDR",
        classes=CLASSES,
        licence="none stated by the authors, published for research",
        citation="Li et al., Diagnostic assessment of deep learning algorithms for diabetic "
        "retinopathy screening, Information Sciences 501, 2019",
        advice="get it from https://github.com/nkicsl/DDR-dataset and unpack it so that "
        "ddr/DR_grading/train.txt, valid.txt and test.txt and the folders ddr/DR_grading/train, "
        "valid and test exist",
        read=read,
        totals={"0": 6266, "1": 630, "2": 4477, "3": 236, "4": 913},
    )
)
