"""`folder`: a user's own images in DOMAIN/CLASS/image or DOMAIN/{train,val,test}/CLASS/image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.listing import contents

SPLITS = ("train", "val", "test")
LIKE_SPLITS = {*SPLITS, "training", "valid", "validation", "testing"}


def read_folder(root: Path) -> list[Item]:
    """Domains, splits and classes are what the folders are called."""
    return [
        item
        for domain in _only_folders(root, "DOMAIN/CLASS/image")
        for item in _read_domain(root / domain, domain)
    ]


def _read_domain(folder: Path, domain: str) -> Iterator[Item]:
    inside = _only_folders(folder, "CLASS/image (a folder DOMAIN/CLASS/image has two levels)")
    splits = [name for name in inside if name in SPLITS]
    likely = [name for name in inside if name.lower() in LIKE_SPLITS and name not in SPLITS]
    if likely:
        raise SodapError(f"{folder / likely[0]} looks like a split; call it train, val or test")
    if not splits:
        yield from _read_classes(folder, domain, None)
    elif splits == inside:
        for split in splits:
            yield from _read_classes(folder / split, domain, split)
    else:
        other = next(name for name in inside if name not in SPLITS)
        raise SodapError(
            f"{folder} holds both split folders ({', '.join(splits)}) and '{other}'; "
            f"give all its images a split or none"
        )


def _read_classes(folder: Path, domain: str, split: str | None) -> Iterator[Item]:
    for label in _only_folders(folder, "CLASS/image"):
        deeper, names = contents(folder / label)
        if deeper:
            raise SodapError(
                f"{folder / label} should hold the images of a class, not the folder '{deeper[0]}'"
            )
        for name in names:
            yield Item(folder / label / name, label, original=label, domain=domain, split=split)


def _only_folders(folder: Path, expected: str) -> list[str]:
    """An image in the wrong place is worth a word: it would be left out in silence."""
    folders, images = contents(folder)
    if images:
        raise SodapError(
            f"the image {folder / images[0]} lies a level too high: "
            f"below {folder} images should lie in {expected}"
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
