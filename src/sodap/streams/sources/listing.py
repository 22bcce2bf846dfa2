"""What lies in a folder, in the order of the names, without what begins with a dot."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.images import SUFFIXES

# Pictures that would otherwise be left out in silence.
OTHER_IMAGES = (".jfif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".psd", ".raw", ".nii", ".svs")


def contents(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the images in it."""
    folders, images = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lower().endswith(SUFFIXES):
                    images.append(entry.name)
                elif entry.name.lower().endswith(OTHER_IMAGES):
                    raise SodapError(
                        f"{entry.path} is an image of a kind that is not read; "
                        f"save it as one of {', '.join(SUFFIXES)}"
                    )
    except OSError as error:
        raise SodapError(f"the folder {folder} cannot be read: {error.strerror}") from error
    return sorted(folders), sorted(images)


def one_of(root: Path, *names: str) -> Path:
    """The first of several places in which archives unpack the same thing."""
    for name in names:
        if (root / name).exists():
            return root / name
    raise SodapError(
        f"{root} is not as its authors distribute it: there is no {' or '.join(names)}"
    )


def by_stem(folders: Iterable[Path]) -> dict[str, Path]:
    """Image files of several folders by their names without suffix."""
    return {
        Path(name).stem: folder / name
        for folder in folders
        if folder.is_dir()
        for name in contents(folder)[1]
    }
