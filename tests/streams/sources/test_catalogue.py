"""Data sets by name, their folders, and sources of other packages."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from sodap.errors import SodapError
from sodap.plugins import BrokenPluginWarning, load_plugins
from sodap.streams import catalogue, protocols
from sodap.streams.catalogue import (
    data_roots,
    find_source,
    locate,
    read_source,
    register_source,
    source_names,
)
from sodap.streams.items import Item, Source
from sodap.streams.protocols import find_protocol


def make_source(name: str = "clinic", items: list[Item] | None = None) -> Source:
    return Source(
        name=name,
        title="images of a clinic",
        classes=("well", "ill"),
        licence="none",
        citation="none",
        advice="ask the clinic",
        read=lambda root: items or [],
    )


@pytest.fixture(autouse=True)
def _fresh_catalogue(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the registries after each test."""
    source_names()
    monkeypatch.setattr(catalogue, "_SOURCES", dict(catalogue._SOURCES))
    monkeypatch.setattr(protocols, "_PROTOCOLS", dict(protocols._PROTOCOLS))
    yield
    load_plugins.cache_clear()


# ------------------------------------------------------------------ names


def test_names_are_sorted_and_found() -> None:
    assert source_names() == sorted(source_names())
    assert {"aptos2019", "core50", "folder", "table"} <= set(source_names())
    for name in source_names():
        assert find_source(name).name == name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SodapError, match="no data set is called 'aptos'") as error:
        find_source("aptos")
    for name in source_names():
        assert name in str(error.value)


def test_names_are_unique() -> None:
    source = register_source(make_source())
    assert register_source(source) is source
    with pytest.raises(ValueError, match="'clinic' is registered already"):
        register_source(make_source())


# ------------------------------------------------------------------ places


def test_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SODAP_DATA", raising=False)
    assert data_roots() == data_roots(None) == data_roots("") == [Path("data")]
    monkeypatch.setenv("SODAP_DATA", "")
    assert data_roots() == [Path("data")]
    monkeypatch.setenv("SODAP_DATA", os.pathsep.join(["one", "", "two"]))
    assert data_roots() == [Path("one"), Path("two")]
    assert data_roots("mine") == [Path("mine")]


def test_the_first_existing_folder_is_used(tmp_path: Path) -> None:
    source = make_source()
    roots = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    assert locate(source, roots) is None
    (roots[2] / "clinic").mkdir(parents=True)
    assert locate(source, roots) == roots[2] / "clinic"
    (roots[1] / "clinic").mkdir(parents=True)
    assert locate(source, roots) == roots[1] / "clinic"


# ------------------------------------------------------------------ checks


def put(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_items_are_sorted_and_unique(tmp_path: Path) -> None:
    home = tmp_path / "clinic"
    put(home / "b.png", home / "a.png")
    b, a = Item(home / "b.png", "ill", "1"), Item(home / "a.png", "well", "0")
    register_source(make_source(items=[b, a, b]))
    assert read_source("clinic", [tmp_path]) == [a, b]


def test_an_image_with_two_labels_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "clinic"
    put(home / "a.png")
    items = [Item(home / "a.png", "ill", "1"), Item(home / "a.png", "well", "0")]
    register_source(make_source(items=items))
    with pytest.raises(SodapError, match=r"a.png is listed twice, as 'ill' and as 'well'"):
        read_source("clinic", [tmp_path])


def test_a_label_outside_the_classes_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "clinic"
    put(home / "a.png")
    register_source(make_source(items=[Item(home / "a.png", "dead", "2")]))
    with pytest.raises(SodapError, match="gives the label 'dead', but its classes are well, ill"):
        read_source("clinic", [tmp_path])


def test_no_items_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "clinic").mkdir()
    register_source(make_source())
    with pytest.raises(SodapError, match=r"holds no images .* ask the clinic"):
        read_source("clinic", [tmp_path])


def test_missing_files_are_counted_with_one_listing_per_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "clinic"
    there = [home / f"{folder}/{number}.png" for folder in "ab" for number in range(50)]
    put(*there, home / "a-file")
    gone = [home / "a/50.png", home / "c/0.png", home / "a-file/0.png"]
    listed: list[str] = []
    scandir = os.scandir

    def counting(folder: Path) -> object:
        listed.append(str(folder))
        return scandir(folder)

    register_source(make_source(items=[Item(path, "ill", "1") for path in there]))
    monkeypatch.setattr(os, "scandir", counting)
    assert len(read_source("clinic", [tmp_path])) == 100
    assert sorted(listed) == [str(home / "a"), str(home / "b")]

    register_source(make_source("ward", [Item(path, "ill", "1") for path in there + gone]))
    (tmp_path / "ward").mkdir()
    with pytest.raises(SodapError, match=r"^3 of 103 images .* the first is .*a-file/0\.png"):
        read_source("ward", [tmp_path])


# ------------------------------------------------------------------ other packages


def install_package(root: Path, name: str, code: str, *entries: str) -> None:
    """Write a module with entry points to `root`, with the metadata that pip writes."""
    (root / f"{name}.py").write_text(code)
    metadata = root / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    lines = [f"{entry} = {name}:{entry}" for entry in entries]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{catalogue.PLUGINS}]", *lines]))


CODE = """
from sodap.streams.augmentation import Augmentation
from sodap.streams.items import Source
from sodap.streams.protocols import DomainSpec, Protocol, register_protocol

SOURCE = Source("clinic", "a clinic", ("well", "ill"), "", "", "ask", read=lambda root: [])
CORE50 = Source("core50", "a name that is taken", (), "", "", "ask", read=lambda root: [])
TEXT = "a string"
register_protocol(
    Protocol(
        "clinic-protocol",
        "images of a clinic",
        SOURCE.classes,
        (DomainSpec("clinic", "clinic"),),
        (8, 1, 1),
        grouped=True,
        augmentation=Augmentation(),
        note="",
    )
)
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path for packages with entry points."""
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    yield tmp_path
    for name in ("clinic_images", "broken_images"):
        sys.modules.pop(name, None)


def test_a_package_adds_a_source_and_a_protocol(plugins: Path) -> None:
    install_package(plugins, "clinic_images", CODE, "SOURCE")
    assert find_protocol("clinic-protocol").domains[0].source == "clinic"
    assert find_source("clinic").title == "a clinic"
    assert "clinic" in source_names()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("TEXT", "it is a str, not a Source"),
        ("MISSING", "has no attribute 'MISSING'"),
        ("CORE50", "'core50' is registered already"),
    ],
)
def test_a_broken_entry_point_is_left_out(plugins: Path, entry: str, reason: str) -> None:
    install_package(plugins, "clinic_images", CODE, "SOURCE", entry)
    with pytest.warns(BrokenPluginWarning, match=f"clinic_images:{entry}.* {reason}") as caught:
        assert "clinic" in source_names()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # only one warning per process
        find_source("clinic")


def test_a_package_that_cannot_be_imported_is_left_out(plugins: Path) -> None:
    install_package(plugins, "broken_images", "import no_such_package\n", "SOURCE")
    install_package(plugins, "clinic_images", CODE, "SOURCE")
    with pytest.warns(BrokenPluginWarning, match="No module named 'no_such_package'"):
        assert find_source("clinic").title == "a clinic"
