"""Sources by name, where they are looked for, and what other packages may add."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest

from sodap.errors import SodapError
from sodap.plugins import BrokenPluginWarning, load_plugins
from sodap.streams import catalogue
from sodap.streams.catalogue import (
    data_roots,
    find_source,
    locate,
    read_source,
    register_source,
    source_names,
)
from sodap.streams.items import Item, Source


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
    """What a test registers is forgotten after it."""
    source_names()
    monkeypatch.setattr(catalogue, "_SOURCES", dict(catalogue._SOURCES))
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


def test_a_name_is_taken_once() -> None:
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


def test_the_first_place_counts(tmp_path: Path) -> None:
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


def test_items_come_sorted_and_once(tmp_path: Path) -> None:
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


def test_missing_files_are_counted_folder_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "clinic"
    there = [home / f"{folder}/{number}.png" for folder in "ab" for number in range(50)]
    put(*there, home / "a-file")
    gone = [home / "a/50.png", home / "c/0.png", home / "a-file/0.png"]
    listed: list[str] = []
    scandir = os.scandir

    def noted(folder: Path) -> object:
        listed.append(str(folder))
        return scandir(folder)

    register_source(make_source(items=[Item(path, "ill", "1") for path in there]))
    monkeypatch.setattr(os, "scandir", noted)
    assert len(read_source("clinic", [tmp_path])) == 100
    assert listed == [str(home / "a"), str(home / "b")]

    register_source(make_source("ward", [Item(path, "ill", "1") for path in there + gone]))
    (tmp_path / "ward").mkdir()
    with pytest.raises(SodapError, match=r"^3 of 103 images .* the first is .*a-file/0\.png"):
        read_source("ward", [tmp_path])


# ------------------------------------------------------------------ other packages


Announce = Callable[[dict[str, object]], None]


@pytest.fixture
def announce(monkeypatch: pytest.MonkeyPatch) -> Announce:
    """Put things into a module `other_package` and announce them as sources; None is absent."""

    def install(things: dict[str, object]) -> None:
        module = ModuleType("other_package")
        vars(module).update({name: thing for name, thing in things.items() if thing is not None})
        monkeypatch.setitem(sys.modules, "other_package", module)
        found = EntryPoints(
            EntryPoint(name, f"other_package:{name}", catalogue.PLUGINS) for name in things
        )
        monkeypatch.setattr("sodap.plugins.entry_points", lambda group: found.select(group=group))
        load_plugins.cache_clear()

    return install


def test_another_package_adds_a_source(announce: Announce) -> None:
    source = make_source()
    announce({"SOURCE": source})
    assert "clinic" in source_names()
    assert find_source("clinic") is source


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        ("a string", "it is a str, not a Source"),
        (None, "module 'other_package' has no attribute 'odd'"),
        (make_source("core50"), "'core50' is registered already"),
    ],
)
def test_a_broken_plugin_is_named_and_left_out(
    announce: Announce, thing: object, reason: str
) -> None:
    known = source_names()
    announce({"odd": thing, "fine": make_source()})
    with pytest.warns(BrokenPluginWarning, match=f"'odd' .*other_package:odd.* {reason}"):
        assert source_names() == sorted([*known, "clinic"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        find_source("clinic")


def test_an_installed_package_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real metadata on the path, as pip leaves it: one package that works and one that does not."""
    (tmp_path / "clinic_images.py").write_text(
        "from sodap.streams.items import Source\n"
        "SOURCE = Source('clinic', 'a clinic', (), 'none', 'none', 'ask', read=lambda root: [])\n"
    )
    (tmp_path / "broken_images.py").write_text("import no_such_package\n")
    for package in ("clinic", "broken"):
        metadata = tmp_path / f"{package}_images-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {package}-images\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(
            f"[sodap.sources]\n{package} = {package}_images:SOURCE\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    with pytest.warns(BrokenPluginWarning, match=r"'broken' .* No module named 'no_such_package'"):
        assert find_source("clinic").title == "a clinic"
    monkeypatch.delitem(sys.modules, "clinic_images")
