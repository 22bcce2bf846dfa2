"""What lies in a folder, in the order of the names, without what begins with a dot."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.images import SUFFIXES

# Pictures that would otherwise be left out in silence.
OTHER_IMAGES = (".jfif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".psd", ".raw", ".nii", ".svs")

# What often lies beside images and is none: no word is lost about it.
NOTES = (
    *(".txt", ".md", ".rst", ".pdf", ".doc", ".docx", ".html", ".htm", ".log", ".cff", ".bib"),
    *(".csv", ".tsv", ".xls", ".xlsx", ".ods", ".parquet", ".json", ".jsonl", ".xml"),
    *(".yaml", ".yml", ".toml", ".ini", ".cfg", ".db", ".md5", ".sha1", ".sha256"),
    *(".py", ".ipynb", ".sh"),
)
NAMES_OF_NOTES = ("readme", "license", "licence", "copying", "notice", "changelog", "citation")


def contents(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the images in it."""
    folders, images, _ = all_contents(folder)
    return folders, images


def all_contents(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Names of the folders, of the images, and of the files that are neither images nor notes."""
    folders, images, others = [], [], []
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
                elif not _is_note(entry.name):
                    others.append(entry.name)
    except OSError as error:
        raise SodapError(f"the folder {folder} cannot be read: {error.strerror}") from error
    return sorted(folders), sorted(images), sorted(others)


def _is_note(name: str) -> bool:
    plain = name.lower()
    return plain.endswith(NOTES) or plain.partition(".")[0] in NAMES_OF_NOTES


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
