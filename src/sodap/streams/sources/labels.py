"""Label files: rows with cells by column name.

Reads text files separated by commas, tabs or semicolons, with or without a byte order mark, blank
lines, spaces after separators and empty columns at the end, and the first sheet of .xlsx files.
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

SPLIT_ALIASES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Name of a split in a label file -> train, val or test."""


@dataclass(frozen=True)
class Row:
    """A row of a label file."""

    file: Path
    place: str
    """Position in the file for messages, such as `line 12`."""
    cells: Mapping[str, str]

    def error(self, what: str) -> SodapError:
        """An error that names the file and the row."""
        return SodapError(f"{self.file}, {self.place}: {what}")

    def get(self, column: str) -> str | None:
        """The cell of a column; None if it is empty or there is no such column."""
        return self.cells.get(column) or None

    def __getitem__(self, column: str) -> str:
        return self.first_filled(column)

    def first_filled(self, *columns: str) -> str:
        """The first cell of `columns` that is not empty."""
        for column in columns:
            if cell := self.get(column):
                return cell
        raise self.error(f"there is no value for {' or '.join(columns)}")

    def one_of(self, value: str, allowed: Collection[str], what: str = "label") -> str:
        """Return `value`, with 1.0 as 1; raise SodapError if it is not in `allowed`."""
        plain = value.removesuffix(".0")
        if plain not in allowed:
            raise self.error(f"the {what} '{value}' is not one of {', '.join(allowed)}")
        return plain

    def split_name(self, column: str) -> str | None:
        """train, val or test; None if the cell is empty."""
        cell = self.get(column)
        if cell is None:
            return None
        return SPLIT_ALIASES[self.one_of(cell.lower(), SPLIT_ALIASES, "split")]


def read_rows(file: Path, columns: Sequence[str], *, any_case: Sequence[str] = ()) -> list[Row]:
    """Read all rows below the header, which must have the `columns`.

    Column names in `any_case` may be written in capitals.
    """
    lines = read_sheet(file) if file.suffix.lower() == ".xlsx" else _read_lines(file)
    if not lines:
        raise SodapError(f"{file} is empty; it should have the columns {', '.join(columns)}")
    (start, names), *body = lines
    header = normalise_header(file, names, any_case)
    for column in columns:
        if column not in header:
            similar = [name for name in header if name.lower() == column.lower()]
            hint = f"; rename '{similar[0]}'" if similar else ""
            raise SodapError(
                f"{file}, line {start}: there is no column '{column}', "
                f"only {', '.join(name for name in header if name)}{hint}"
            )
    return [
        Row(file, f"line {number}", dict(zip(header, cells, strict=False)))
        for number, cells in body
    ]


def normalise_header(file: Path, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Replace names in a header that differ from one of the `columns` only by case or spaces."""
    header = list(names)
    for column in columns:
        similar = [i for i, name in enumerate(names) if name.strip().lower() == column]
        if column in names or not similar:
            continue
        if len(similar) > 1:
            several = " and ".join(f"'{names[i]}'" for i in similar)
            raise SodapError(f"{file} has the columns {several}; rename the right one '{column}'")
        header[similar[0]] = column
    return header


def read_text(file: Path) -> str:
    """Read a label file without its byte order mark."""
    try:
        return file.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise SodapError(f"there is no label file at {file}") from error
    except UnicodeDecodeError as error:
        raise SodapError(f"{file} is not a text file in UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise SodapError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:  # null byte in the name
        raise SodapError(f"there is no label file at {printable(file)}") from error


def _read_lines(file: Path) -> list[tuple[int, list[str]]]:
    """Line numbers and cells of the lines that are not blank."""
    text = read_text(file)
    header = text.lstrip("\n").partition("\n")[0]
    delimiter = max(",;\t", key=header.count)  # a comma if the header has none of them
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
