"""One image file and what its data set says of it: what every source gives and all else takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Item:
    """An image that can be learned from."""

    path: Path
    label: str
    """The class that the source's label map gives it."""
    original: str
    """The label as the data set writes it: a grade, a diagnosis."""
    group: str | None = None
    """Whatever must not sit on both sides of a split: a patient, a lesion, a video."""
    domain: str | None = None
    """For a source that holds several domains: a session, a style, a clinic."""
    split: str | None = None
    """train, val or test, where the data set's authors have split it themselves."""


@dataclass(frozen=True)
class Source:
    """A data set in the layout in which it is distributed."""

    name: str
    title: str
    classes: tuple[str, ...]
    """In order; empty for a source that takes its classes from the user's files."""
    licence: str
    citation: str
    advice: str
    """Where to get it and where to put it; nothing is downloaded behind the user's back."""
    read: Callable[[Path], list[Item]] = field(repr=False)
    """All its items below a folder; raises SodapError in one sentence where something is amiss."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """How many images of each original label the complete data set has."""
