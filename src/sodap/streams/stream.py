"""`Stream`, a sequence of `Domain`s with three splits each, learned stage by stage.

Images are uint8 tensors `[N, 3, H, W]`, in memory or mapped from a file. Types, shapes and labels
are checked here, when the objects are created.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.formats import first_few, plural
from sodap.streams.augmentation import Augmentation
from sodap.streams.grey import NO_RANGES, GreyRanges
from sodap.streams.items import SkippedFile
from sodap.streams.splits import SplitRow


class MissingClassWarning(UserWarning):
    """A domain has no training image of some class."""


@dataclass(frozen=True, repr=False)
class Split:
    """Images `[N, 3, H, W]` (uint8) and their class indices `[N]` (int64)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise SodapError(
                f"images must be a uint8 tensor of shape [N, 3, height, width], "
                f"got {self.images.dtype} {list(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise SodapError(
                f"labels must be an int64 tensor with one entry per image ({len(self.images)}), "
                f"got {self.labels.dtype} {list(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, count: int) -> Split:
        """The first `count` images, or all if there are fewer."""
        return Split(self.images[:count], self.labels[:count])

    def __repr__(self) -> str:
        _, _, height, width = self.images.shape
        return f"Split: {plural(len(self), 'image')}, {width} x {height} px"


@dataclass(frozen=True, repr=False)
class Domain:
    """Images from one source (a camera, a hospital, a season) in three disjoint splits."""

    name: str
    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...] = ()
    """Class names in the order of the label numbers, if known; compared with the stream's."""
    origin: str = ""
    """Where the names of groups come from; see `sodap.streams.items.PlannedDomain`."""
    ranges: GreyRanges = NO_RANGES
    """Black and white of the deep grey images among its files."""

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(split)} {name}" for name, split in self.splits())
        return f"Domain '{self.name}': {counts} images"

    def splits(self) -> Iterator[tuple[str, Split]]:
        yield "train", self.train
        yield "val", self.val
        yield "test", self.test

    def check(self, classes: Sequence[str]) -> None:
        """Raise SodapError if the domain cannot be learned; warn about classes without images."""
        self.check_classes(classes)
        for name, split in self.splits():
            self.check_split(name, split, classes)
        present = set(self.train.labels.tolist())
        missing = [name for index, name in enumerate(classes) if index not in present]
        if missing:
            warnings.warn(
                f"domain '{self.name}' has no training image of {', '.join(missing)}; "
                f"these classes are learned from the other domains only",
                MissingClassWarning,
                stacklevel=3,
            )

    def check_classes(self, classes: Sequence[str]) -> None:
        """Raise SodapError if the label numbers stand for other classes than `classes`."""
        if self.classes and self.classes != tuple(classes):
            raise SodapError(
                f"domain '{self.name}' numbers its classes {', '.join(self.classes)}, "
                f"but they should be {', '.join(classes)}; load it with classes=learner.classes"
            )

    def check_split(self, name: str, split: Split, classes: Sequence[str]) -> None:
        """Raise SodapError if a split is empty or has labels that are not classes."""
        if len(split) == 0:
            raise SodapError(
                f"the {name} split of domain '{self.name}' is empty; "
                f"every domain needs images for train, val and test"
            )
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= len(classes):
            raise SodapError(
                f"the {name} split of domain '{self.name}' has label {low if low < 0 else high}, "
                f"but the {len(classes)} classes are numbered 0 to {len(classes) - 1}"
            )


def union(domains: Sequence[Domain]) -> Domain:
    """Merge the train and val splits of several domains; name and test split are the last one's.

    Joint training, an upper bound for continual learning, uses this. All images are copied into
    memory.
    """
    last = domains[-1]

    def joined(name: str) -> Split:
        splits: list[Split] = [getattr(domain, name) for domain in domains]
        if len({split.images.shape[1:] for split in splits}) > 1:
            raise SodapError(
                f"the domains up to '{last.name}' cannot be learned at once: "
                f"their images have different sizes"
            )
        images = torch.cat([split.images for split in splits])
        return Split(images, torch.cat([split.labels for split in splits]))

    return replace(last, train=joined("train"), val=joined("val"))


@dataclass(frozen=True)
class Stage:
    """One step of a stream, in which one domain is learned; `number` counts from 1."""

    number: int
    domain: Domain


@dataclass(frozen=True, repr=False)
class Stream:
    """Domains in the order in which they are learned, over one fixed list of classes."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]
    unseen: tuple[Domain, ...] = ()
    """Domains that are tested but never learned; the last columns of R."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Default augmentation for these images; the training settings can override it."""
    rows: tuple[SplitRow, ...] = ()
    """The split of each file, for streams made of files."""
    notes: tuple[str, ...] = ()
    """How the files differ from the complete data set, the paper or the saved splits."""
    ranges: GreyRanges = NO_RANGES
    """Black and white of deep grey images, measured on the training images."""
    skipped: tuple[SkippedFile, ...] = ()
    """Unreadable files that were left out."""

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise SodapError(f"stream '{self.name}' needs two or more classes with distinct names")
        names = [domain.name for domain in self.tested]
        if not self.domains or len(set(names)) != len(names):
            raise SodapError(f"stream '{self.name}' needs one or more domains with distinct names")
        for domain in self.domains:
            for name, split in domain.splits():
                domain.check_split(name, split, self.classes)
        for domain in self.unseen:
            domain.check_split("test", domain.test, self.classes)
        for domain in self.tested:
            domain.check_classes(self.classes)

    @property
    def tested(self) -> tuple[Domain, ...]:
        """The columns of R: all learned domains, then the unseen ones."""
        return self.domains + self.unseen

    def stages(self) -> Iterator[Stage]:
        for number, domain in enumerate(self.domains, start=1):
            yield Stage(number, domain)

    def __len__(self) -> int:
        return len(self.domains)

    def __repr__(self) -> str:
        images = sum(len(split) for domain in self.tested for _, split in domain.splits())
        unseen = f", then only tested: {first_few(_names(self.unseen))}" if self.unseen else ""
        return (
            f"Stream '{self.name}': {plural(images, 'image')} of {len(self.classes)} classes "
            f"({first_few(self.classes)})\n"
            f"{plural(len(self), 'domain')} to learn: {first_few(_names(self.domains))}{unseen}"
        )


def _names(domains: Sequence[Domain]) -> list[str]:
    return [domain.name for domain in domains]
