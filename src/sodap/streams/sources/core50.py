"""`core50`: videos of 50 household objects, turned by hand in front of a camera, in 11 places."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.listing import list_folder

CLASSES = (
    "plug adapters",
    "mobile phones",
    "scissors",
    "light bulbs",
    "cans",
    "glasses",
    "balls",
    "markers",
    "cups",
    "remote controls",
)
OBJECTS_PER_CLASS = 5


def read(root: Path) -> list[Item]:
    """Read sS/oO/C_SS_OO_FFF.png (session S, object O, frame F).

    A session is a domain, a video (session and object) is a group, five objects form a class.
    """
    for size in ("core50_128x128", "core50_350x350"):
        if (root / size).is_dir():
            return read(root / size)
    return [
        Item(
            root / session / thing / name,
            label,
            original=thing,
            group=f"{session}/{thing}",
            domain=session,
        )
        for session in list_folder(root).folders
        if re.fullmatch(r"s\d+", session)
        for thing in list_folder(root / session).folders
        for label in [_class_of(root / session / thing)]
        for name in list_folder(root / session / thing).images
    ]


def _class_of(folder: Path) -> str:
    number = re.fullmatch(r"o(\d+)", folder.name)
    last = len(CLASSES) * OBJECTS_PER_CLASS
    if number is None or not 1 <= int(number[1]) <= last:
        raise SodapError(f"{folder} is not a folder of CORe50, whose objects are o1 to o{last}")
    return CLASSES[(int(number[1]) - 1) // OBJECTS_PER_CLASS]


PLACE = "https://vlomonaco.github.io/core50"

CORE50 = register_source(
    Source(
        name="core50",
        title="CORe50",
        classes=CLASSES,
        licence="CC BY 4.0",
        citation="Lomonaco and Maltoni, CORe50: a new dataset and benchmark for continuous object "
        "recognition, CoRL, 2017",
        advice=f"get core50_128x128.zip or core50_350x350.zip from {PLACE} and unpack it so that "
        "core50/core50_128x128/s1/o1/C_01_01_000.png (or core50/s1/o1/C_01_01_000.png) exists",
        read=read,
    )
)
register_source(
    replace(
        CORE50,
        name="core50_sample",
        title="a part of CORe50",
        advice=f"get core50_128x128.zip from {PLACE} and copy the frames you want so that "
        "core50_sample/s1/o1/C_01_01_000.png exists",
    )
)
