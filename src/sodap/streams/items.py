"""`Item`, an image file with its labels; `Source`, a data set of items; `PlannedDomain`."""

from __future__ import annotations

from collections import Counter
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


@dataclass(frozen=True)
class PlannedDomain:
    """The items of a domain and the split of each item."""

    name: str
    root: Path | None
    """The folder that paths are relative to; None if there are only lists and no images."""
    items: tuple[Item, ...]
    splits: tuple[str, ...] = ()
    """Split of each item; empty until splits are assigned."""
    learned: bool = True
    origin: str = ""
    """Where the names of groups come from: a group of one origin is one patient in all domains."""

    def in_split(self, split: str) -> list[Item]:
        """The items of a split, sorted by file name."""
        chosen = [item for item, own in zip(self.items, self.splits, strict=True) if own == split]
        return sorted(chosen, key=lambda item: relative(item.path, self.root))

    def counts(self, split: str | None = None) -> Counter[str]:
        """Number of images of each class, in one split or in all."""
        pairs = zip(self.items, self.splits, strict=True)
        return Counter(item.label for item, own in pairs if split in (None, own))


@dataclass(frozen=True)
class SkippedFile:
    """An image file that is left out because it cannot be read."""

    domain: str
    path: str
    reason: str


def relative(path: Path, root: Path | None) -> str:
    """A path relative to `root`, with slashes; unchanged if the file is not below `root`."""
    if root is not None and path.is_relative_to(root):
        path = path.relative_to(root)
    return path.as_posix()
