"""`table`: a user's own images, listed in a CSV or Parquet file.

Columns: path, label, domain, and where wanted group and split, in any case. Paths are relative to
the file.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sodap.errors import SodapError
from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.names import printable
from sodap.streams.sources.labels import Row, plain_names, read_rows
from sodap.streams.sources.listing import one_of

COLUMNS = ("path", "label", "domain")
# A group that is overlooked for a capital would let a patient sit on both sides of a split.
ANY_CASE = (*COLUMNS, "group", "split")


class OverlookedColumnWarning(UserWarning):
    """A table has columns that nobody asks for, and no groups."""


def read_table(file: Path) -> list[Item]:
    """One item a row, in the order of the file."""
    is_parquet = file.suffix.lower() == ".parquet"
    rows = _read_parquet(file) if is_parquet else read_rows(file, COLUMNS, any_case=ANY_CASE)
    if rows and "group" not in rows[0].cells:
        _warn_of_overlooked(file, [name for name in rows[0].cells if name not in ANY_CASE])
    return [
        Item(
            file.parent / _path(row),
            row["label"],
            original=row["label"],
            group=row.get("group"),
            domain=row["domain"],
            split=row.split("split"),
        )
        for row in rows
    ]


def _path(row: Row) -> str:
    if "\0" in row["path"]:
        raise row.error(f"'{printable(row['path'])}' is no path: it holds a zero byte")
    return row["path"]


def _warn_of_overlooked(file: Path, columns: list[str]) -> None:
    """Patients under any other name would be split apart without a word."""
    if columns:
        named = ", ".join(f"'{name}'" for name in columns)
        warnings.warn(
            f"{file} has no column 'group', and nothing else is read from {named}; if one of them "
            f"says which images belong together (a patient, a lesion), call it 'group'",
            OverlookedColumnWarning,
            stacklevel=2,
        )


def _read_parquet(file: Path) -> list[Row]:
    if not file.is_file():
        raise SodapError(f"there is no table at {file}")
    try:
        records = _records(file)
    except SodapError:
        raise
    except Exception as error:  # each reader has errors of its own
        raise SodapError(f"{file} cannot be read as a Parquet file: {error}") from error
    if not records:
        return []
    names = plain_names(file, list(map(str, records[0])), ANY_CASE)
    for column in COLUMNS:
        if column not in names:
            raise SodapError(f"{file} has no column '{column}', only {', '.join(names)}")
    return [
        Row(file, f"row {number}", dict(zip(names, map(_cell, record.values()), strict=True)))
        for number, record in enumerate(records, start=1)
    ]


def _records(file: Path) -> list[dict[str, Any]]:
    """Rows as dictionaries, by whichever reader is installed."""
    if find_spec("pyarrow"):
        table = import_module("pyarrow.parquet").read_table(file)
        return list(table.to_pylist())
    if find_spec("polars"):
        return list(import_module("polars").read_parquet(file).to_dicts())
    raise SodapError(f"{file} is a Parquet file; pip install pyarrow (or polars) to read it")


def _cell(value: object) -> str:
    return "" if value is None else str(value).strip()


def _read(root: Path) -> list[Item]:
    return read_table(one_of(root, "table.csv", "table.parquet") if root.is_dir() else root)


register_source(
    Source(
        name="table",
        title="own images in a table",
        classes=(),
        licence="that of your images",
        citation="that of your images",
        advice="write table/table.csv or table/table.parquet with the columns path, label and "
        "domain, and where you want group and split, with paths relative to the table",
        read=_read,
    )
)
