"""Label files as they are found in the wild: rows by column name, and where each of them stands.

Separated by commas, tabs or semicolons, with or without a byte order mark, blank lines, spaces
after commas, empty columns at the end, any line ending; or the first sheet of a spreadsheet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.names import printable
from sodap.streams.sources.spreadsheet import read_sheet

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""What authors call their splits, and what they are called here."""


@dataclass(frozen=True)
class Row:
    """One line of a label file."""

    file: Path
    place: str
    """Where in the file, for people: `line 12`."""
    cells: Mapping[str, str]

    def error(self, what: str) -> SodapError:
        return SodapError(f"{self.file}, {self.place}: {what}")

    def get(self, column: str) -> str | None:
        """The cell, None where it is empty or there is no such column."""
        return self.cells.get(column) or None

    def __getitem__(self, column: str) -> str:
        return self.first(column)

    def first(self, *columns: str) -> str:
        """The first cell that is filled in."""
        for column in columns:
            if cell := self.get(column):
                return cell
        raise self.error(f"there is no value for {' or '.join(columns)}")

    def known(self, label: str, labels: Collection[str], what: str = "label") -> str:
        """The label, if it is one of the `labels`; 1.0 is 1."""
        plain = label.removesuffix(".0")
        if plain not in labels:
            raise self.error(f"the {what} '{label}' is none of {', '.join(labels)}")
        return plain

    def split(self, column: str) -> str | None:
        """train, val or test, by whichever name; None where the cell is empty."""
        cell = self.get(column)
        return None if cell is None else SPLITS[self.known(cell.lower(), SPLITS, "split")]


def read_rows(file: Path, columns: Sequence[str], *, any_case: Sequence[str] = ()) -> list[Row]:
    """All rows below the header, which must name the `columns`; capitals are no matter in some."""
    lines = read_sheet(file) if file.suffix.lower() == ".xlsx" else _read_lines(file)
    if not lines:
        raise SodapError(f"{file} is empty; it should have the columns {', '.join(columns)}")
    (start, names), *body = lines
    header = plain_names(file, names, any_case)
    for column in columns:
        if column not in header:
            alike = [name for name in header if name.lower() == column.lower()]
            hint = f"; call '{alike[0]}' so" if alike else ""
            raise SodapError(
                f"{file}, line {start}: there is no column '{column}', "
                f"only {', '.join(name for name in header if name)}{hint}"
            )
    return [
        Row(file, f"line {number}", dict(zip(header, cells, strict=False)))
        for number, cells in body
    ]


def plain_names(file: Path, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The names in a header; one that is like one of the `columns` but for capitals becomes it."""
    plain = list(names)
    for column in columns:
        alike = [i for i, name in enumerate(names) if name.strip().lower() == column]
        if column in names or not alike:
            continue
        if len(alike) > 1:
            several = " and ".join(f"'{names[i]}'" for i in alike)
            raise SodapError(f"{file} has the columns {several}; call the one to use '{column}'")
        plain[alike[0]] = column
    return plain


def read_text(file: Path) -> str:
    """The text of a label file without its byte order mark."""
    try:
        return file.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise SodapError(f"there is no label file at {file}") from error
    except UnicodeDecodeError as error:
        raise SodapError(f"{file} is not a text file in UTF-8; save it as one") from error
    except OSError as error:
        raise SodapError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the name
        raise SodapError(f"there is no label file at {printable(file)}") from error


def _read_lines(file: Path) -> list[tuple[int, list[str]]]:
    """Line numbers and cells of all lines that are not blank."""
    text = read_text(file)
    header = text.lstrip("\n").partition("\n")[0]
    delimiter = max(",;\t", key=header.count)  # a comma if there is none of them
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    lines: list[tuple[int, list[str]]] = []
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                lines.append((reader.line_num, stripped))
    except csv.Error as error:
        raise SodapError(f"{file}, line {reader.line_num}: {error}") from error
    return lines
