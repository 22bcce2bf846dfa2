"""Data sets by name, and the checks on what they yield.

A new data set is a `Source`, registered here or by an entry point of another package. Its images
are expected in ROOT/NAME, where ROOT is a folder that the user chooses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sodap.errors import SodapError
from sodap.plugins import load_plugins
from sodap.streams.items import Item, Source

PLUGINS = "sodap.sources"
"""The group of entry points through which other packages add sources."""

_SOURCES: dict[str, Source] = {}


def register_source(source: Source) -> Source:
    """Add a data set to the catalogue under its name."""
    if _SOURCES.setdefault(source.name, source) is not source:
        raise ValueError(f"a source named '{source.name}' is registered already")
    return source


def source_names() -> list[str]:
    load_plugins(PLUGINS, _register_plugin)
    return sorted(_SOURCES)


def find_source(name: str) -> Source:
    names = source_names()
    if name not in names:
        raise SodapError(f"no data set is called '{name}'; there are: {', '.join(names)}")
    return _SOURCES[name]


def _register_plugin(_: str, source: object) -> None:
    if not isinstance(source, Source):
        raise TypeError(f"it is a {type(source).__name__}, not a Source")
    register_source(source)


def data_roots(given: str | None = None) -> list[Path]:
    """Folders that hold data sets: the given one, else those in SODAP_DATA, else ./data."""
    if given:
        return [Path(given)]
    named = os.environ.get("SODAP_DATA", "")
    return [Path(root) for root in named.split(os.pathsep) if root] or [Path("data")]


def locate(source: Source, roots: Sequence[Path]) -> Path | None:
    """The first folder ROOT/NAME that exists."""
    return next((root / source.name for root in roots if (root / source.name).exists()), None)


def read_source(name: str, roots: Sequence[Path]) -> list[Item]:
    """All items of a data set, sorted by path.

    Checks that every file exists, that no file has two labels, and that labels are classes of the
    source.
    """
    source = find_source(name)
    home = locate(source, roots)
    if home is None:
        places = " or ".join(str(root / source.name) for root in roots)
        raise SodapError(f"{source.title} was not found at {places}: {source.advice}")
    items = sorted(source.read(home), key=lambda item: str(item.path))
    if not items:
        raise SodapError(f"{home} holds no images of {source.title}: {source.advice}")
    _check_labels(source, items)
    items = list(_without_repetitions(items))
    _check_files(home, items)
    return items


def _check_labels(source: Source, items: Sequence[Item]) -> None:
    unknown = sorted({item.label for item in items} - set(source.classes))
    if source.classes and unknown:
        raise SodapError(
            f"the source '{source.name}' gives the label '{unknown[0]}', "
            f"but its classes are {', '.join(source.classes)}"
        )


def _without_repetitions(items: Sequence[Item]) -> Iterator[Item]:
    """Drop repeated items: an image that is listed twice could end up in two splits."""
    last: Item | None = None
    for item in items:
        if last is None or item.path != last.path:
            yield item
        elif item.label != last.label:
            raise SodapError(
                f"{item.path} is listed twice, as '{last.label}' and as '{item.label}'; "
                f"correct the label file"
            )
        last = item


def _check_files(home: Path, items: Sequence[Item]) -> None:
    """Check that all files exist; one listing per folder is faster than one query per file."""
    names: dict[Path, frozenset[str]] = {}
    missing: list[Path] = []
    for item in items:
        folder = item.path.parent
        if folder not in names:
            names[folder] = _names_in(folder)
        if item.path.name not in names[folder]:
            missing.append(item.path)
    if missing:
        raise SodapError(
            f"{len(missing)} of {len(items)} images in {home} are missing, the first is "
            f"{missing[0]}; unpack the archive again or correct the label file"
        )


def _names_in(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: null byte in the name
        return frozenset()
    except OSError as error:
        raise SodapError(f"cannot read the folder {folder}: {error.strerror}") from error
