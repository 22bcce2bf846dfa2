"""`folder`: a user's own images in DOMAIN/CLASS/image or DOMAIN/{train,val,test}/CLASS/image."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.catalogue import register_source
from sodap.streams.images import SUFFIXES
from sodap.streams.items import SPLITS, Item, Source
from sodap.streams.names import is_utf8, printable
from sodap.streams.sources.labels import SPLIT_ALIASES
from sodap.streams.sources.listing import list_folder


class EmptyDomainWarning(UserWarning):
    """A domain folder holds no images and is left out."""


class EmptyClassWarning(UserWarning):
    """A class folder holds no images."""


class SkippedFilesWarning(UserWarning):
    """Files with unknown suffixes among the images are left out."""


def read_folder(root: Path) -> list[Item]:
    """Read domains, classes and optional splits from the names of the folders."""
    items: list[Item] = []
    empty_domains: list[str] = []
    empty_classes: dict[str, list[str]] = defaultdict(list)  # class -> domains
    skipped: set[Path] = set()  # a set, since a folder may be listed twice
    for domain in _subfolders(root, "DOMAIN/CLASS/image", skipped):
        classes = list(_read_domain(root / domain, domain, skipped))
        found = [item for _, images in classes for item in images]
        items += found
        if not found:
            empty_domains.append(domain)
        for label in {label for label, _ in classes} - {item.label for item in found}:
            empty_classes[label].append(domain)
    if items:  # otherwise the caller raises an error
        _warn_of_empty_domains(root, empty_domains)
        _warn_of_empty_classes(root, empty_classes, empty_domains, {item.label for item in items})
    _warn_of_skipped(root, sorted(skipped))
    return items


def _read_domain(folder: Path, domain: str, skipped: set[Path]) -> Iterator[tuple[str, list[Item]]]:
    """Each class folder of a domain with its items; adds unknown files to `skipped`."""
    expected = "CLASS/image (a folder DOMAIN/CLASS/image has two levels)"
    names = _subfolders(folder, expected, skipped)
    splits = [name for name in names if name in SPLITS]
    similar = [name for name in names if name.lower() in SPLIT_ALIASES and name not in SPLITS]
    if similar:
        raise SodapError(
            f"{folder / similar[0]} looks like a split; rename it to train, val or test"
        )
    if not splits:
        yield from _read_classes(folder, domain, None, skipped)
    elif splits == names:
        for split in splits:
            yield from _read_classes(folder / split, domain, split, skipped)
    else:
        other = next(name for name in names if name not in SPLITS)
        raise SodapError(
            f"{folder} holds both split folders ({', '.join(splits)}) and '{other}'; "
            f"put all its images into splits, or none"
        )


def _read_classes(
    folder: Path, domain: str, split: str | None, skipped: set[Path]
) -> Iterator[tuple[str, list[Item]]]:
    for label in _subfolders(folder, "CLASS/image", skipped):
        contents = list_folder(folder / label)
        if contents.folders:
            raise SodapError(
                f"{folder / label} should hold the images of a class, "
                f"not the folder '{contents.folders[0]}'"
            )
        skipped.update(folder / label / name for name in contents.others)
        yield (
            label,
            [
                Item(folder / label / name, label, original=label, domain=domain, split=split)
                for name in contents.images
            ],
        )


def _subfolders(folder: Path, expected: str, skipped: set[Path]) -> list[str]:
    """Names of the folders in `folder`; images beside them are an error."""
    contents = list_folder(folder)
    if contents.images:
        raise SodapError(
            f"the image {folder / contents.images[0]} is one level too high: "
            f"below {folder}, images should be in {expected}"
        )
    skipped.update(folder / name for name in contents.others)
    for name in contents.folders:
        if not is_utf8(name):  # unlike file names, they are printed everywhere
            raise SodapError(
                f"the name of the folder {printable(folder / name)} is not in UTF-8; rename it"
            )
    return contents.folders


def _warn_of_empty_domains(root: Path, domains: Sequence[str]) -> None:
    """Warn, since a drive that is not mounted looks like an empty folder."""
    if domains:
        named = ", ".join(f"'{name}'" for name in domains)
        warnings.warn(
            f"{root} has domain folders without any image, which are left out: {named}; "
            f"check whether a copy or a mount has failed",
            EmptyDomainWarning,
            stacklevel=3,
        )


def _warn_of_empty_classes(
    root: Path, empty_classes: Mapping[str, Sequence[str]], empty: Sequence[str], learned: set[str]
) -> None:
    """Warn, since a class without images is missing from the model."""
    for label, domains in sorted(empty_classes.items()):
        # Empty domains have their own warning, unless no other domain has the class.
        named = [name for name in domains if label not in learned or name not in empty]
        if named:
            where = ", ".join(f"'{name}'" for name in named)
            lost = "" if label in learned else "no domain has one, so it is not learned; "
            warnings.warn(
                f"{root} has folders of the class '{label}' without any image, in {where}; "
                f"{lost}check whether a copy or a mount has failed",
                EmptyClassWarning,
                stacklevel=3,
            )


def _warn_of_skipped(root: Path, files: Sequence[Path]) -> None:
    if files:
        suffixes = Counter(file.suffix.lower() or "without a suffix" for file in files)
        counts = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common())
        warnings.warn(
            f"files below {root} that do not have the suffix of an image are left out: {counts}; "
            f"the first is {files[0]}; images end in {', '.join(SUFFIXES)}",
            SkippedFilesWarning,
            stacklevel=3,
        )


register_source(
    Source(
        name="folder",
        title="own images in folders",
        classes=(),
        licence="that of your images",
        citation="that of your images",
        advice="put your images into folder/DOMAIN/CLASS/ or folder/DOMAIN/{train,val,test}/CLASS/",
        read=read_folder,
    )
)
