"""`table`: a user's own images, listed in a CSV or Parquet file.

Columns: path, label, domain and, optionally, group and split, in upper or lower case. Paths are
relative to the file.
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
from sodap.streams.sources.labels import Row, normalise_header, read_rows
from sodap.streams.sources.listing import first_existing

COLUMNS = ("path", "label", "domain")
# Upper or lower case: a column "Group" that is missed would put a patient into two splits.
ANY_CASE = (*COLUMNS, "group", "split")


class OverlookedColumnWarning(UserWarning):
    """A table has no column `group`, but columns that are not used."""


def read_table(file: Path) -> list[Item]:
    """Read one item per row, in the order of the file."""
    is_parquet = file.suffix.lower() == ".parquet"
    rows = _read_parquet(file) if is_parquet else read_rows(file, COLUMNS, any_case=ANY_CASE)
    if rows and "group" not in rows[0].cells:
        _warn_of_unused(file, [name for name in rows[0].cells if name not in ANY_CASE])
    return [
        Item(
            file.parent / _path(row),
            row["label"],
            original=row["label"],
            group=row.get("group"),
            domain=row["domain"],
            split=row.split_name("split"),
        )
        for row in rows
    ]


def _path(row: Row) -> str:
    if "\0" in row["path"]:
        raise row.error(f"the path '{printable(row['path'])}' contains a null byte")
    return row["path"]


def _warn_of_unused(file: Path, columns: list[str]) -> None:
    """Warn, since images of a patient in another column would end up in different splits."""
    if columns:
        named = ", ".join(f"'{name}'" for name in columns)
        warnings.warn(
            f"{file} has no column 'group', and {named} will not be used; if one of them "
            f"says which images belong together (a patient, a lesion), rename it 'group'",
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
    except Exception as error:  # the readers raise different errors
        raise SodapError(f"cannot read {file} as a Parquet file: {error}") from error
    if not records:
        return []
    names = normalise_header(file, list(map(str, records[0])), ANY_CASE)
    for column in COLUMNS:
        if column not in names:
            raise SodapError(f"{file} has no column '{column}', only {', '.join(names)}")
    return [
        Row(file, f"row {number}", dict(zip(names, map(_cell, record.values()), strict=True)))
        for number, record in enumerate(records, start=1)
    ]


def _records(file: Path) -> list[dict[str, Any]]:
    """Rows as dictionaries, read with pyarrow or polars."""
    if find_spec("pyarrow"):
        table = import_module("pyarrow.parquet").read_table(file)
        return list(table.to_pylist())
    if find_spec("polars"):
        return list(import_module("polars").read_parquet(file).to_dicts())
    raise SodapError(f"{file} is a Parquet file; run `pip install pyarrow` (or polars) to read it")


def _cell(value: object) -> str:
    return "" if value is None else str(value).strip()


def _read(root: Path) -> list[Item]:
    return read_table(first_existing(root, "table.csv", "table.parquet") if root.is_dir() else root)


register_source(
    Source(
        name="table",
        title="own images in a table",
        classes=(),
        licence="that of your images",
        citation="that of your images",
        advice="write table/table.csv or table/table.parquet with the columns path, label, "
        "domain and, optionally, group and split, with paths relative to the table",
        read=_read,
    )
)
