"""A user's own images, in folders and in tables."""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sodap.errors import SodapError
from sodap.streams.catalogue import read_source
from sodap.streams.items import Item
from sodap.streams.sources import table as table_module
from sodap.streams.sources.folder import (
    EmptyClassWarning,
    EmptyDomainWarning,
    SkippedFilesWarning,
    read_folder,
)
from sodap.streams.sources.table import OverlookedColumnWarning, read_table


def put(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


# ------------------------------------------------------------------ folders


def test_folders_without_and_with_splits(tmp_path: Path) -> None:
    put(tmp_path / "b/cat/2.JPG", tmp_path / "b/cat/1.png", tmp_path / "a/train/dog/3.webp")
    put(tmp_path / "b/cat/notes.txt", tmp_path / "b/cat/.1.png", tmp_path / ".git/x/y.png")
    put(tmp_path / "readme.md")
    (tmp_path / "a/val/dog").mkdir(parents=True)
    assert read_folder(tmp_path) == [
        Item(tmp_path / "a/train/dog/3.webp", "dog", "dog", domain="a", split="train"),
        Item(tmp_path / "b/cat/1.png", "cat", "cat", domain="b"),
        Item(tmp_path / "b/cat/2.JPG", "cat", "cat", domain="b"),
    ]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["1.png"], r"1\.png is one level too high: .* DOMAIN/CLASS/image"),
        (["a/1.png", "a/cat/2.png"], r"a/1\.png is one level too high"),
        (["a/train/1.png"], r"train/1\.png is one level too high"),
        (["a/train/cat/1.png", "a/cat/2.png"], r"both split folders \(train\) and 'cat'"),
        (["a/cat/young/1.png"], "a/cat should hold the images of a class, not the folder 'young'"),
        (["a/train/cat/old/1.png"], "a/train/cat should hold the images of a class"),
    ],
)
def test_wrong_folders(paths: list[str], message: str, tmp_path: Path) -> None:
    put(*(tmp_path / path for path in paths))
    with pytest.raises(SodapError, match=message):
        read_folder(tmp_path)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="none: No such file or directory"):
        read_folder(tmp_path / "none")


def test_warning_for_empty_domains(tmp_path: Path) -> None:
    put(tmp_path / "01/cat/1.png", tmp_path / "03/cat/notes.txt")
    (tmp_path / "02-mount").mkdir()
    with pytest.warns(EmptyDomainWarning, match=r"left out: '02-mount', '03'; .* mount") as caught:
        assert len(read_folder(tmp_path)) == 1
    assert len(caught) == 1


def test_warning_for_a_class_without_images_in_any_domain(tmp_path: Path) -> None:
    put(tmp_path / "01/cat/1.png", tmp_path / "02/test/cat/1.png")
    (tmp_path / "01/glaucoma").mkdir()
    (tmp_path / "02/train/glaucoma").mkdir(parents=True)
    (tmp_path / "02/test/glaucoma").mkdir()
    words = r"class 'glaucoma' without any image, in '01', '02'; no domain has one, so it is not"
    with pytest.warns(EmptyClassWarning, match=words) as caught:
        assert {item.label for item in read_folder(tmp_path)} == {"cat"}
    assert len(caught) == 1


def test_warning_for_a_class_without_images_in_some_domains(tmp_path: Path) -> None:
    put(tmp_path / "01/cat/1.png", tmp_path / "01/dog/1.png", tmp_path / "02/cat/1.png")
    put(tmp_path / "02/dog/notes.txt", tmp_path / "03/dog/1.png")
    (tmp_path / "03/cat").mkdir()
    with pytest.warns(EmptyClassWarning) as caught:
        assert len(read_folder(tmp_path)) == 4
    messages = [str(each.message) for each in caught]
    found = [re.findall(r"'(\w+)'", message) for message in messages]
    assert found == [["cat", "03"], ["dog", "02"]]
    assert not any("not learned" in message for message in messages)


def test_warning_for_a_class_that_only_an_empty_domain_has(tmp_path: Path) -> None:
    put(tmp_path / "01/cat/1.png")
    (tmp_path / "02/cat").mkdir(parents=True)
    (tmp_path / "02/dog").mkdir()
    with pytest.warns() as caught:
        read_folder(tmp_path)
    assert [each.category for each in caught] == [EmptyDomainWarning, EmptyClassWarning]
    assert "'dog' without any image, in '02'; no domain has one" in str(caught[1].message)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    latin_1 = os.fsdecode(b"M\xfcller")
    put(tmp_path / f"a/cat/{latin_1}.png")
    assert [item.path.stem for item in read_folder(tmp_path)] == [latin_1]
    for place in (latin_1, f"a/{latin_1}"):
        put(tmp_path / place / "1.txt")
        with pytest.raises(SodapError, match=r"M\\udcfcller is not in UTF-8; rename it"):
            read_folder(tmp_path)
        (tmp_path / place / "1.txt").unlink()
        (tmp_path / place).rmdir()


def test_warning_for_unknown_suffixes(tmp_path: Path) -> None:
    put(*(tmp_path / f"a/cat/{name}" for name in ("1.png", "2.dicom", "3.DICOM", "IM0004")))
    put(tmp_path / "a/x.mat", tmp_path / "y.mat", tmp_path / "z.mat")
    counts = r"3 \.mat, 2 \.dicom, 1 without a suffix; the first is .*; images end in \.png"
    with pytest.warns(SkippedFilesWarning, match=counts) as caught:
        assert len(read_folder(tmp_path)) == 1
    assert len(caught) == 1


def test_warning_for_unknown_suffixes_without_images(tmp_path: Path) -> None:
    put(tmp_path / "a/cat/1.dicom")
    with pytest.warns(SkippedFilesWarning, match=r"1 \.dicom") as caught:
        assert read_folder(tmp_path) == []
    assert len(caught) == 1


@pytest.mark.parametrize("place", ["", "a", "a/cat"])
def test_notes_beside_the_images_are_ignored(place: str, tmp_path: Path) -> None:
    """Without a warning, which would be an error in the tests."""
    put(tmp_path / "a/cat/1.png")
    for name in ("README", "LICENSE", "Readme.de", "a.txt", "a.CSV", "a.json", "a.md", "a.xml"):
        put(tmp_path / place / name)
    put(*(tmp_path / place / n for n in (".DS_Store", "Thumbs.db", "desktop.ini", "a.yaml")))
    assert len(read_folder(tmp_path)) == 1


names = st.text(st.characters(categories=["Ll", "Lu", "Nd"]), min_size=1, max_size=6)


@settings(max_examples=25)
@given(
    places=st.sets(
        st.tuples(names, st.sampled_from(["x", "y", "z"]), st.integers(0, 9)),
        min_size=1,
        max_size=12,
    )
)
def test_every_image_is_found_once(
    places: set[tuple[str, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("images")
    put(*(root / domain / label / f"{number}.png" for domain, label, number in places))
    items = read_folder(root)
    found = [(item.domain, item.label, int(item.path.stem)) for item in items]
    assert len(found) == len(places)
    assert set(found) == places
    assert [item.path for item in items] == sorted(item.path for item in items)


# ------------------------------------------------------------------ tables


def test_paths_are_relative_to_the_table(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere/c.png"
    file = tmp_path / "lists/mine.csv"
    put(file)
    file.write_text(
        "label, path, domain, split, group\n"
        "cat, ../images/a.png, clinic, train, p1\n"
        "dog, b.png, van, validation,\n"
        f"dog, {elsewhere}, van, ,\n"
    )
    assert read_table(file) == [
        Item(tmp_path / "lists/../images/a.png", "cat", "cat", "p1", "clinic", "train"),
        Item(tmp_path / "lists/b.png", "dog", "dog", None, "van", "val"),
        Item(elsewhere, "dog", "dog", None, "van", None),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,cat\n", "line 1: there is no column 'domain'"),
        ("path,label,domain\n,cat,x\n", "line 2: there is no value for path"),
        ("path,label,domain\na.png,,x\n", "line 2: there is no value for label"),
        ("path,label,domain\na.png,cat,\n", "line 2: there is no value for domain"),
        (
            "path,label,domain,split\na,cat,x,later\n",
            "line 2: the split 'later' is not one",
        ),
        ("path;label\na;cat\n", "line 1: there is no column 'domain', only path, label$"),
        ("path,label,domain\na\0.png,cat,x\n", r"line 2: .*'a\\x00\.png' contains a null byte"),
        ("Path,label,domain,PATH\na,cat,x,b\n", "'Path' and 'PATH'; rename the right one 'path'"),
        ("path,label,domain,Group,GROUP\na,cat,x,1,2\n", "'GROUP'; rename the right one 'group'"),
    ],
)
def test_wrong_tables(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(text)
    with pytest.raises(SodapError, match=message):
        read_table(file)


@pytest.mark.parametrize(
    "text",
    [
        "Path,LABEL, Domain ,Group,Split\na.png,cat,clinic,p1,Test\n",
        "path;label;domain;group;split\na.png;cat;clinic;p1;test\n",
        '\ufeffPath ; Label;"Domain";GROUP;split;\r\n"a.png";cat;clinic;p1;test;\r\n',
        "Path\tLabel\tDomain\tGroup\tSplit\na.png\tcat\tclinic\tp1\ttest\n",
        "Group,path,Path,label,domain,split\np1,a.png,b.png,cat,clinic,test\n",
    ],
)
def test_variants_of_a_table(text: str, tmp_path: Path) -> None:
    """A group column in capitals must be found, or a patient could be in two splits."""
    file = tmp_path / "mine.csv"
    file.write_text(text, "utf-8", newline="")
    assert read_table(file) == [Item(tmp_path / "a.png", "cat", "cat", "p1", "clinic", "test")]


def test_a_null_byte_in_the_name_of_a_table(tmp_path: Path) -> None:
    for name in ("a\0.csv", "a\0.parquet", "a\0.xlsx"):
        with pytest.raises(SodapError, match=r"a\0\.|a\\x00\."):
            read_table(tmp_path / name)


def test_a_comma_in_a_cell_between_semicolons(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("path;label;domain\na,b.png;cat, old;clinic\n")
    assert read_table(file) == [Item(tmp_path / "a,b.png", "cat, old", "cat, old", None, "clinic")]


def test_warning_for_unused_columns_without_groups(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("path,label,domain,Patient\na.png,cat,clinic,7\n")
    with pytest.warns(OverlookedColumnWarning, match="'Patient'.* rename it 'group'"):
        assert read_table(file)[0].group is None


def test_a_comma_in_a_header_between_semicolons(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text('path;label;domain;group;"age, years"\na.png;cat;clinic;;70\n')
    assert read_table(file) == [Item(tmp_path / "a.png", "cat", "cat", None, "clinic")]


def test_the_source_can_be_a_table_file(tmp_path: Path) -> None:
    """ROOT/table is a folder with table.csv, or the table itself."""
    (tmp_path / "table").write_text("path,label,domain\na.png,cat,x\n")
    put(tmp_path / "a.png")
    assert [item.path for item in read_source("table", [tmp_path])] == [tmp_path / "a.png"]


RECORDS: list[dict[str, Any]] = [
    {"path": "a.png", "label": 1, "domain": "clinic", "group": None, "split": "test"},
    {"path": "b.png", "label": 0, "domain": "van", "group": 7, "split": None},
]


def install(monkeypatch: pytest.MonkeyPatch, reader: str, records: object) -> None:
    """A stand-in for pyarrow or polars, which the tests do not require."""

    def read(file: Path) -> Any:
        if isinstance(records, Exception):
            raise records
        return SimpleNamespace(to_pylist=lambda: records, to_dicts=lambda: records)

    for name in ("pyarrow", "polars"):
        monkeypatch.setattr(
            table_module,
            "find_spec",
            lambda wanted: ModuleSpec(wanted, None) if wanted == reader else None,
        )
        module = ModuleType(name)
        vars(module).update(read_table=read, read_parquet=read, parquet=module)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", sys.modules["pyarrow"])


@pytest.mark.parametrize("reader", ["pyarrow", "polars"])
def test_parquet(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, reader, RECORDS)
    file = tmp_path / "mine.parquet"
    file.touch()
    assert read_table(file) == [
        Item(tmp_path / "a.png", "1", "1", None, "clinic", "test"),
        Item(tmp_path / "b.png", "0", "0", "7", "van", None),
    ]


def test_wrong_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.parquet"
    with pytest.raises(SodapError, match="there is no table at"):
        read_table(file)
    file.touch()
    install(monkeypatch, "neither", RECORDS)
    with pytest.raises(SodapError, match="pip install pyarrow"):
        read_table(file)
    install(monkeypatch, "pyarrow", [{"path": "a.png", "label": "cat"}])
    with pytest.raises(SodapError, match="has no column 'domain', only path, label"):
        read_table(file)
    capitals = [{f" {key.upper()}": value for key, value in record.items()} for record in RECORDS]
    install(monkeypatch, "pyarrow", capitals)
    assert [(item.label, item.group) for item in read_table(file)] == [("1", None), ("0", "7")]
    install(monkeypatch, "pyarrow", [])
    assert read_table(file) == []
    install(monkeypatch, "pyarrow", [*RECORDS, {**RECORDS[0], "label": None}])
    with pytest.raises(SodapError, match="row 3: there is no value for label"):
        read_table(file)
    install(monkeypatch, "polars", OSError("magic bytes not found"))
    with pytest.raises(SodapError, match="as a Parquet file: magic bytes"):
        read_table(file)


def test_parquet_with_pyarrow(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "mine.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), file)
    assert [item.label for item in read_table(file)] == ["1", "0"]
    file.write_bytes(b"no parquet")
    with pytest.raises(SodapError, match="as a Parquet file"):
        read_table(file)
