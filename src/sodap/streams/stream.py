"""Images as they arrive: a `Stream` of `Domain`s, each with three splits, learned stage by stage.

Images are uint8 `[N, 3, H, W]` tensors, in memory or mapped from a file: one layout for a stream of
generated digits and for a decoded clinical archive. Every check happens here, once, at the door.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.streams.augment import Augmentation
from sodap.streams.splits import SplitRow


class MissingClassWarning(UserWarning):
    """A domain's training split holds no image of some class; learning goes on without it."""


@dataclass(frozen=True)
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
        """The first `count` images (fewer where there are fewer)."""
        return Split(self.images[:count], self.labels[:count])


@dataclass(frozen=True)
class Domain:
    """One source of images: a camera, a hospital, a season. Splits never share an image."""

    name: str
    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...] = ()
    """What the labels' numbers stand for, where it is known: then nobody can mix them up."""

    def splits(self) -> Iterator[tuple[str, Split]]:
        yield "train", self.train
        yield "val", self.val
        yield "test", self.test

    def check(self, classes: Sequence[str]) -> None:
        """Raise on what cannot be learned; warn about what can be lived with."""
        self.check_classes(classes)
        for kind, split in self.splits():
            self.check_split(kind, split, classes)
        present = set(self.train.labels.tolist())
        missing = [name for index, name in enumerate(classes) if index not in present]
        if missing:
            warnings.warn(
                f"domain '{self.name}' has no training image of {', '.join(missing)}; "
                f"what is known of that class comes from the other domains",
                MissingClassWarning,
                stacklevel=3,
            )

    def check_classes(self, classes: Sequence[str]) -> None:
        """A number means one class here and another there: nobody would notice."""
        if self.classes and self.classes != tuple(classes):
            raise SodapError(
                f"domain '{self.name}' numbers its classes {', '.join(self.classes)}, "
                f"but they should be {', '.join(classes)}; load it with classes=learner.classes"
            )

    def check_split(self, kind: str, split: Split, classes: Sequence[str]) -> None:
        if len(split) == 0:
            raise SodapError(
                f"the {kind} split of domain '{self.name}' is empty; "
                f"every domain needs images to train, validate and test on"
            )
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= len(classes):
            raise SodapError(
                f"domain '{self.name}' ({kind}) holds label {low if low < 0 else high}, "
                f"but the {len(classes)} classes are numbered 0 to {len(classes) - 1}"
            )


def union(domains: Sequence[Domain]) -> Domain:
    """All training and validation images of `domains` as one domain, otherwise like the last.

    It is what an upper bound learns from. All of it is copied into memory.
    """
    last = domains[-1]

    def joined(kind: str) -> Split:
        splits: list[Split] = [getattr(domain, kind) for domain in domains]
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
    """The time in which one domain is learned; `number` counts from 1, as in the paper."""

    number: int
    domain: Domain


@dataclass(frozen=True)
class Stream:
    """Domains in the order of their arrival, over one fixed list of classes."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]
    unseen: tuple[Domain, ...] = ()
    """Domains that are only ever tested on; they follow the others as columns of R."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Which random views suit these images, unless the training says otherwise."""
    rows: tuple[SplitRow, ...] = ()
    """Which file is in which split, for streams that are made of files."""
    notes: tuple[str, ...] = ()
    """Where the files are not what a paper or a data set promises; one sentence each."""

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise SodapError(f"stream '{self.name}' needs two or more classes with distinct names")
        names = [domain.name for domain in self.tested]
        if not self.domains or len(set(names)) != len(names):
            raise SodapError(f"stream '{self.name}' needs one or more domains with distinct names")
        for domain in self.domains:
            for kind, split in domain.splits():
                domain.check_split(kind, split, self.classes)
        for domain in self.unseen:
            domain.check_split("test", domain.test, self.classes)
        for domain in self.tested:
            domain.check_classes(self.classes)

    @property
    def tested(self) -> tuple[Domain, ...]:
        """The columns of R: every domain that is learned, then those that never are."""
        return self.domains + self.unseen

    def stages(self) -> Iterator[Stage]:
        for number, domain in enumerate(self.domains, start=1):
            yield Stage(number, domain)

    def __len__(self) -> int:
        return len(self.domains)
