"""Contents of folders, sorted by name, without hidden files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sodap.errors import SodapError
from sodap.streams.images import SUFFIXES

# Image formats that cannot be read: an error is better than leaving them out without a word.
UNSUPPORTED = (".jfif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".psd", ".raw", ".nii", ".svs")

# Files that are common beside images; they are ignored without a warning.
NOTES = (
    *(".txt", ".md", ".rst", ".pdf", ".doc", ".docx", ".html", ".htm", ".log", ".cff", ".bib"),
    *(".csv", ".tsv", ".xls", ".xlsx", ".ods", ".parquet", ".json", ".jsonl", ".xml"),
    *(".yaml", ".yml", ".toml", ".ini", ".cfg", ".db", ".md5", ".sha1", ".sha256"),
    *(".py", ".ipynb", ".sh"),
)
NOTE_NAMES = ("readme", "license", "licence", "copying", "notice", "changelog", "citation")


class Contents(NamedTuple):
    """Names in a folder."""

    folders: list[str]
    images: list[str]
    others: list[str]
    """Files that are neither images nor notes."""


def list_folder(folder: Path) -> Contents:
    """List a folder; raises SodapError for an image of an unsupported format."""
    contents = Contents([], [], [])
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name.lower()
                if name.startswith("."):
                    continue
                if _is_folder(entry):
                    contents.folders.append(entry.name)
                elif name.endswith(SUFFIXES):
                    contents.images.append(entry.name)
                elif name.endswith(UNSUPPORTED):
                    raise SodapError(
                        f"{entry.path} has an unsupported image format; "
                        f"save it as one of {', '.join(SUFFIXES)}"
                    )
                elif not name.endswith(NOTES) and name.partition(".")[0] not in NOTE_NAMES:
                    contents.others.append(entry.name)
    except OSError as error:
        raise SodapError(f"cannot read the folder {folder}: {error.strerror}") from error
    for names in contents:
        names.sort()
    return contents


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of symbolic links; as a file, its name is in the error message
        return False


def first_existing(root: Path, *names: str) -> Path:
    """The first of several paths below `root` that exists; archives unpack in several ways."""
    for name in names:
        if (root / name).exists():
            return root / name
    raise SodapError(
        f"{root} does not have the layout of the published archive: "
        f"there is no {' or '.join(names)}"
    )


def images_by_stem(folders: Iterable[Path]) -> dict[str, Path]:
    """Image files of several folders, by file name without suffix."""
    return {
        Path(name).stem: folder / name
        for folder in folders
        if folder.is_dir()
        for name in list_folder(folder).images
    }
