"""Label files in the variants that spreadsheets, editors and other systems write."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sodap.errors import SodapError
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.spreadsheet import SHEET, STRINGS, read_sheet

SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


@pytest.mark.parametrize(
    "content",
    [
        b"image,grade\na,0\nb,1\n",
        b"\xef\xbb\xbfimage,grade\na,0\nb,1\n",
        b"image,grade\r\na,0\r\nb,1\r\n",
        b"image,grade\ra,0\rb,1",
        b"image, grade\na, 0\nb, 1\n",
        b" image ,grade \n a ,0 \n b ,1 \n",
        b"\n\nimage,grade\n\na,0\n\n,\nb,1\n\n",
        b"image,grade,,,\na,0,,,\nb,1,,,\n",
        b'"image","grade"\n"a","0"\n"b", "1"\n',
        b"image\tgrade\na\t0\nb\t1\n",
        b"\nimage\tgrade\na\t0\nb\t1\n",
        b"image;grade\r\na;0\r\nb;1\r\n",
        b"Image,image,grade\nx,a,0\ny,b,1\n",
        b"grade,image,other\n0,a,x\n1,b\n",
    ],
)
def test_variants_of_one_table(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(content)
    rows = read_rows(file, ["image", "grade"])
    assert [(row["image"], row["grade"]) for row in rows] == [("a", "0"), ("b", "1")]


def test_rows_have_their_line_number(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text('image,note\n\na,"two\nlines"\nb,x\n')
    rows = read_rows(file, ["image"])
    assert [row.place for row in rows] == ["line 4", "line 5"]
    assert rows[0]["note"] == "two\nlines"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; it should have the columns image, grade"),
        (b"\n,\n", "is empty"),
        (b"\nname,grade\na,0\n", "line 2: there is no column 'image', only name, grade"),
        (b"Image,grade\na,0\n", "no column 'image', only Image, grade; rename 'Image'"),
        (b"image,grade\n\xff\xfe,0\n", "is not a text file in UTF-8"),
        ("image,grade\na,0\n".encode("utf-16"), "is not a text file in UTF-8"),
        (b'image,grade\na,"0\n', "line 2: unexpected end of data"),
        (b"image,grade\na," + b"0" * 200_000, "line 2: field larger than"),
    ],
)
def test_files_that_are_not_tables(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(content)
    with pytest.raises(SodapError, match=message) as error:
        read_rows(file, ["image", "grade"])
    assert str(file) in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="there is no label file at"):
        read_rows(tmp_path / "labels.csv", ["image"])
    with pytest.raises(SodapError, match="Is a directory"):
        read_rows(tmp_path, ["image"])


def test_cells(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("image,grade,split\na,1.0,Valid\nb,,\n")
    first, second = read_rows(file, ["image"])
    assert first.one_of(first["grade"], ("0", "1")) == "1"
    assert first.first_filled("nothing", "grade") == "1.0"
    assert first.split_name("split") == "val"
    assert second.split_name("split") is second.split_name("nothing") is second.get("grade") is None
    with pytest.raises(SodapError, match="line 3: there is no value for grade"):
        second["grade"]
    with pytest.raises(SodapError, match=r"line 2: the label '1\.0' is not one of 0, 2"):
        first.one_of(first["grade"], ("0", "2"))


# Without carriage returns, since line breaks within cells are normalised.
words = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=12)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=st.lists(words, max_size=8), ending=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_output_of_the_csv_writer_is_read(
    names: list[str], ending: str, bom: bool, tmp_path: Path
) -> None:
    """Except for spaces at the ends of cells, which are removed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=ending, quoting=csv.QUOTE_ALL)
    writer.writerow(["image", "number"])
    writer.writerows([name, number] for number, name in enumerate(names))
    file = tmp_path / "labels.csv"
    file.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.getvalue().encode())
    rows = read_rows(file, ["image", "number"])
    assert [row["number"] for row in rows] == [str(number) for number in range(len(names))]
    assert [row.get("image") or "" for row in rows] == [name.strip() for name in names]


# ------------------------------------------------------------------ spreadsheets


def put_parts(file: Path, **parts: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in parts.items():
            archive.writestr({"sheet": SHEET, "strings": STRINGS}.get(name, name), text)


def sheet(*rows: str) -> str:
    return f"<worksheet {SPACE}><sheetData>{''.join(rows)}</sheetData></worksheet>"


def test_a_spreadsheet_with_empty_cells_formatted_text_and_blank_rows(tmp_path: Path) -> None:
    file = tmp_path / "labels.xlsx"
    put_parts(
        file,
        sheet=sheet(
            '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1" t="s"><v>1</v></c></row>',
            '<row r="2"/>',
            '<row r="4"><c r="A4" t="inlineStr"><is><t>1_l1</t></is></c><c r="C4"><v>2</v></c>'
            '<c r="AB4"><v>7</v></c></row>',
        ),
        strings=f"<sst {SPACE}><si><t>image_id</t></si>"
        "<si><r><t>DR_</t></r><r><t>Levels </t></r></si></sst>",
    )
    assert read_sheet(file) == [
        (1, ["image_id", "", "DR_Levels"]),
        (4, ["1_l1", "", "2", *[""] * 24, "7"]),
    ]
    (row,) = read_rows(file, ["image_id", "DR_Levels"])
    assert (row.place, row["image_id"], row["DR_Levels"]) == ("line 4", "1_l1", "2")


def test_cells_without_a_position(tmp_path: Path) -> None:
    file = tmp_path / "labels.xlsx"
    put_parts(file, sheet=sheet("<row><c><v>1</v></c><c><v>2.0</v></c></row>"))
    assert read_sheet(file) == [(1, ["1", "2.0"])]


def test_files_that_are_not_spreadsheets(tmp_path: Path) -> None:
    file = tmp_path / "labels.xlsx"
    with pytest.raises(SodapError, match="there is no label file at"):
        read_sheet(file)
    row = '<row r="1"><c r="A1" t="s"><v>3</v></c></row>'
    for parts in ({}, {"sheet": "<worksheet"}, {"sheet": sheet(row)}, {"other": "text"}):
        put_parts(file, **parts)
        with pytest.raises(SodapError, match="not a readable"):
            read_sheet(file)
    file.write_bytes(b"not a zip archive")
    with pytest.raises(SodapError, match="not a readable"):
        read_sheet(file)
