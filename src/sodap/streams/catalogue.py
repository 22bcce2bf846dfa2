"""Data sets by name: a new one is a `Source`, registered here or by an entry point of its package.

Images are looked for in ROOT/NAME, where ROOT is a folder of the user's choice. What a source gives
is checked here, once, at the door: files exist, no image is listed twice, labels are its classes.
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
    """Make `find_source(source.name)` give it."""
    if _SOURCES.setdefault(source.name, source) is not source:
        raise ValueError(f"a source named '{source.name}' is registered already")
    return source


def source_names() -> list[str]:
    load_plugins(PLUGINS, _register_plugin)
    return sorted(_SOURCES)


def find_source(name: str) -> Source:
    load_plugins(PLUGINS, _register_plugin)
    if name not in _SOURCES:
        raise SodapError(f"no data set is called '{name}'; there are: {', '.join(source_names())}")
    return _SOURCES[name]


def _register_plugin(source: object) -> None:
    if not isinstance(source, Source):
        raise TypeError(f"it is a {type(source).__name__}, not a Source")
    register_source(source)


def data_roots(given: str | None = None) -> list[Path]:
    """Folders in which data sets lie: the given one, else those of SODAP_DATA, else ./data."""
    if given:
        return [Path(given)]
    named = os.environ.get("SODAP_DATA", "")
    return [Path(root) for root in named.split(os.pathsep) if root] or [Path("data")]


def locate(source: Source, roots: Sequence[Path]) -> Path | None:
    """The first ROOT/NAME that exists."""
    return next((root / source.name for root in roots if (root / source.name).exists()), None)


def read_source(name: str, roots: Sequence[Path]) -> list[Item]:
    """All items of a data set, in the order of their paths, whatever order the disk has."""
    source = find_source(name)
    home = locate(source, roots)
    if home is None:
        places = " or ".join(str(root / source.name) for root in roots)
        raise SodapError(f"{source.title} is not at {places}: {source.advice}")
    items = sorted(source.read(home), key=lambda item: str(item.path))
    if not items:
        raise SodapError(f"{home} holds no images of {source.title}: {source.advice}")
    _check_labels(source, items)
    items = list(_once_each(items))
    _check_files(home, items)
    return items


def _check_labels(source: Source, items: Sequence[Item]) -> None:
    unknown = sorted({item.label for item in items} - set(source.classes))
    if source.classes and unknown:
        raise SodapError(
            f"the source '{source.name}' gives the label '{unknown[0]}', "
            f"but its classes are {', '.join(source.classes)}"
        )


def _once_each(items: Sequence[Item]) -> Iterator[Item]:
    """Without repetitions: an image listed twice could sit on both sides of a split."""
    last: Item | None = None
    for item in items:
        if last is None or item.path != last.path:
            yield item
        elif item.label != last.label:
            raise SodapError(
                f"{item.path} is listed twice, as '{last.label}' and as '{item.label}'; "
                f"mend the label file"
            )
        last = item


def _check_files(home: Path, items: Sequence[Item]) -> None:
    """One listing a folder instead of one question a file: slow disks have many of both."""
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
            f"{len(missing)} of {len(items)} images of {home} are missing, the first is "
            f"{missing[0]}; unpack the archive again or mend the label file"
        )


def _names_in(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a zero byte in the name
        return frozenset()
    except OSError as error:
        raise SodapError(f"the folder {folder} cannot be read: {error.strerror}") from error
