"""`Item`, an image file with its labels, and `Source`, a data set that yields items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


@dataclass(frozen=True)
class Item:
    """An image file and what its data set says about it."""

    path: Path
    label: str
    """The class, as the source's label map gives it."""
    original: str
    """The label as the data set writes it, for example a grade or a diagnosis."""
    group: str | None = None
    """Images of one group (a patient, a lesion, a video) belong in the same split."""
    domain: str | None = None
    """The session, style or clinic, for a source that holds several domains."""
    split: str | None = None
    """train, val or test, if the data set comes with splits."""


@dataclass(frozen=True)
class Source:
    """A data set in the layout in which it is distributed."""

    name: str
    title: str
    classes: tuple[str, ...]
    """Class names in order; empty for a source whose classes come from the user's files."""
    licence: str
    citation: str
    advice: str
    """Where to get the data set and where to put it. Nothing is downloaded automatically."""
    read: Callable[[Path], list[Item]] = field(repr=False)
    """Returns all items below a folder; raises SodapError if the files are not as expected."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Number of images of each original label in the complete data set."""
