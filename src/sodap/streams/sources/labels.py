"""Label files as they are found in the wild: rows by column name, and where each of them stands.

CSV or tab-separated, with or without a byte order mark, blank lines, spaces after commas, empty
columns at the end, any line ending; or the first sheet of a spreadsheet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sodap.errors import SodapError
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


def read_rows(file: Path, columns: Sequence[str]) -> list[Row]:
    """All rows below the header, which must name the `columns`."""
    lines = read_sheet(file) if file.suffix.lower() == ".xlsx" else _read_lines(file)
    if not lines:
        raise SodapError(f"{file} is empty; it should have the columns {', '.join(columns)}")
    (start, header), *body = lines
    for column in columns:
        if column not in header:
            alike = [name for name in header if name.lower() == column.lower()]
            hint = f"; call '{alike[0]}' so" if alike else ""
            if len(header) == 1 and ";" in header[0]:
                hint = "; separate the columns by commas, not semicolons"
            raise SodapError(
                f"{file}, line {start}: there is no column '{column}', "
                f"only {', '.join(name for name in header if name)}{hint}"
            )
    return [
        Row(file, f"line {number}", dict(zip(header, cells, strict=False)))
        for number, cells in body
    ]


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


def _read_lines(file: Path) -> list[tuple[int, list[str]]]:
    """Line numbers and cells of all lines that are not blank."""
    text = read_text(file)
    delimiter = "\t" if "\t" in text.lstrip("\n").partition("\n")[0] else ","
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
