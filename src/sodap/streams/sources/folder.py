"""`folder`: a user's own images in DOMAIN/CLASS/image or DOMAIN/{train,val,test}/CLASS/image."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.catalogue import register_source
from sodap.streams.images import SUFFIXES
from sodap.streams.items import Item, Source
from sodap.streams.names import is_utf8, printable
from sodap.streams.sources.listing import all_contents

SPLITS = ("train", "val", "test")
LIKE_SPLITS = {*SPLITS, "training", "valid", "validation", "testing"}


class EmptyDomainWarning(UserWarning):
    """A folder that should be a domain holds no image; the others are read."""


class EmptyClassWarning(UserWarning):
    """A folder that should hold the images of a class holds none; the others are read."""


class SkippedFilesWarning(UserWarning):
    """Files among the images have a suffix that is not known; they are not read."""


def read_folder(root: Path) -> list[Item]:
    """Domains, splits and classes are what the folders are called."""
    items: list[Item] = []
    empty: list[str] = []
    lacking: dict[str, list[str]] = defaultdict(list)  # class -> domains
    skipped: set[Path] = set()  # a folder may be listed twice
    for domain in _only_folders(root, "DOMAIN/CLASS/image", skipped):
        classes: set[str] = set()
        found = list(_read_domain(root / domain, domain, classes, skipped))
        items += found
        if not found:
            empty.append(domain)
        for label in classes - {item.label for item in found}:
            lacking[label].append(domain)
    if items:  # without any, the caller has more to say
        _warn_of_empty(root, empty)
        _warn_of_lacking(root, lacking, empty, {item.label for item in items})
    _warn_of_skipped(root, sorted(skipped))
    return items


def _warn_of_empty(root: Path, domains: Sequence[str]) -> None:
    """A disk that is not mounted looks like an empty folder."""
    if domains:
        named = ", ".join(f"'{name}'" for name in domains)
        warnings.warn(
            f"{root} has domain folders without any image, which are left out: {named}; "
            f"see whether a copy or a mount has failed",
            EmptyDomainWarning,
            stacklevel=3,
        )


def _warn_of_lacking(
    root: Path, lacking: Mapping[str, Sequence[str]], empty: Sequence[str], learned: set[str]
) -> None:
    """A class that nobody misses would be missing from the model."""
    for label, domains in sorted(lacking.items()):
        # Of a domain without any image, enough is said, unless a class is lost with it.
        named = [name for name in domains if label not in learned or name not in empty]
        if named:
            where = ", ".join(f"'{name}'" for name in named)
            lost = "" if label in learned else "no domain has one, so it is not learned; "
            warnings.warn(
                f"{root} has folders of the class '{label}' without any image, in {where}; "
                f"{lost}see whether a copy or a mount has failed",
                EmptyClassWarning,
                stacklevel=3,
            )


def _warn_of_skipped(root: Path, files: Sequence[Path]) -> None:
    if files:
        kinds = Counter(file.suffix.lower() or "without a suffix" for file in files)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        warnings.warn(
            f"files that are no images by their names are left out below {root}: {counts}; "
            f"the first is {files[0]}; images end in {', '.join(SUFFIXES)}",
            SkippedFilesWarning,
            stacklevel=3,
        )


def _read_domain(
    folder: Path, domain: str, classes: set[str], skipped: set[Path]
) -> Iterator[Item]:
    """Its images; `classes` and `skipped` take in what else is found."""
    expected = "CLASS/image (a folder DOMAIN/CLASS/image has two levels)"
    inside = _only_folders(folder, expected, skipped)
    splits = [name for name in inside if name in SPLITS]
    likely = [name for name in inside if name.lower() in LIKE_SPLITS and name not in SPLITS]
    if likely:
        raise SodapError(f"{folder / likely[0]} looks like a split; call it train, val or test")
    if not splits:
        yield from _read_classes(folder, domain, None, classes, skipped)
    elif splits == inside:
        for split in splits:
            yield from _read_classes(folder / split, domain, split, classes, skipped)
    else:
        other = next(name for name in inside if name not in SPLITS)
        raise SodapError(
            f"{folder} holds both split folders ({', '.join(splits)}) and '{other}'; "
            f"give all its images a split or none"
        )


def _read_classes(
    folder: Path, domain: str, split: str | None, classes: set[str], skipped: set[Path]
) -> Iterator[Item]:
    for label in _only_folders(folder, "CLASS/image", skipped):
        classes.add(label)
        deeper, names, others = all_contents(folder / label)
        if deeper:
            raise SodapError(
                f"{folder / label} should hold the images of a class, not the folder '{deeper[0]}'"
            )
        skipped.update(folder / label / name for name in others)
        for name in names:
            yield Item(folder / label / name, label, original=label, domain=domain, split=split)


def _only_folders(folder: Path, expected: str, skipped: set[Path]) -> list[str]:
    """An image in the wrong place is worth a word: it would be left out in silence."""
    folders, images, others = all_contents(folder)
    if images:
        raise SodapError(
            f"the image {folder / images[0]} lies a level too high: "
            f"below {folder} images should lie in {expected}"
        )
    skipped.update(folder / name for name in others)
    for name in folders:
        if not is_utf8(name):  # unlike files, domains and classes are named on every page
            raise SodapError(
                f"the name of the folder {printable(folder / name)} is not in UTF-8; rename it"
            )
    return folders


register_source(
    Source(
        name="folder",
        title="own images in folders",
        classes=(),
        licence="that of your images",
        citation="that of your images",
        advice="put your images so that folder/DOMAIN/CLASS/image or "
        "folder/DOMAIN/{train,val,test}/CLASS/image exist",
        read=read_folder,
    )
)
