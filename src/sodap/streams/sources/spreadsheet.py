"""The first sheet of an .xlsx file as text; some labels of DeepDRiD come in this format only.

An .xlsx file is a zip archive of XML files; a cell holds a number or an index into a list of
strings.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from sodap.errors import SodapError

SHEET = "xl/worksheets/sheet1.xml"
STRINGS = "xl/sharedStrings.xml"

MAX_BYTES = 50_000_000
"""Larger XML files are refused; label files have a few thousand cells."""


def read_sheet(file: Path) -> list[tuple[int, list[str]]]:
    """Row numbers and cells of the rows that are not blank."""
    try:
        with zipfile.ZipFile(file) as archive:
            sheet = _parse(archive, SHEET)
            has_strings = STRINGS in archive.namelist()
            strings = _parse(archive, STRINGS).findall("{*}si") if has_strings else []
            return _rows(sheet, [_text(string) for string in strings])
    except FileNotFoundError as error:
        raise SodapError(f"there is no label file at {file}") from error
    except (zipfile.BadZipFile, ElementTree.ParseError, LookupError, ValueError, OSError) as error:
        raise SodapError(f"{file} is not a readable .xlsx file; save it again") from error


def _parse(archive: zipfile.ZipFile, name: str) -> Element:
    if archive.getinfo(name).file_size > MAX_BYTES:
        raise ValueError(f"{name} is too large")
    return ElementTree.fromstring(archive.read(name))


def _text(node: Element) -> str:
    """The text of a string, which may consist of several formatted pieces."""
    return "".join(piece.text or "" for piece in node.iter() if piece.tag.endswith("}t")).strip()


def _rows(sheet: Element, strings: list[str]) -> list[tuple[int, list[str]]]:
    rows = []
    for number, row in enumerate(sheet.iterfind("{*}sheetData/{*}row"), start=1):
        cells: list[str] = []
        for cell in row.findall("{*}c"):
            column = _column(cell.get("r", ""), default=len(cells))
            cells += [""] * (column - len(cells))  # the file leaves out empty cells
            cells.append(_value(cell, strings))
        if any(cells):
            rows.append((int(row.get("r", number)), cells))
    return rows


def _column(place: str, default: int) -> int:
    """Column number of a cell: 0 for A7, 27 for AB7."""
    letters = re.match(r"[A-Z]{1,3}", place)
    if letters is None:
        return default
    column = 0
    for letter in letters[0]:
        column = 26 * column + ord(letter) - ord("A") + 1
    return column - 1


def _value(cell: Element, strings: list[str]) -> str:
    kind = cell.get("t")
    if kind == "inlineStr":
        return _text(cell)
    value = (cell.findtext("{*}v") or "").strip()
    return strings[int(value)] if kind == "s" else value
