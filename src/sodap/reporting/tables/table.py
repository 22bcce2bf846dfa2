"""Tables as plain data, before they become HTML, Markdown, LaTeX or text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sodap.evaluation import PairedDifference
from sodap.formats import MISSING, format_difference, format_score


@dataclass(frozen=True)
class Cell:
    """A cell with the value that it sorts by, and its style."""

    text: str
    value: float | None = None
    """Number to sort by; None sorts by the text."""
    bold: bool = False
    faint: bool = False
    shade: float | None = None
    """Strength of the background colour, 0 to 1, in tables that are heat maps."""


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Row]
    sortable: bool = False
    filters: Sequence[int] = ()
    """Columns with a menu of their values; rows with other values are hidden."""
    tags: Sequence[str] = ()
    """One tag per row; elements with the same tag are hidden together with the row."""
    wide: bool = False

    def is_text(self, column: int) -> bool:
        """Whether a column is aligned to the left, as text is."""
        return not any(isinstance(row[column], Cell) for row in self.rows)


def score_cell(value: float | None, *, faint: bool = False, bold: bool = False) -> Cell:
    return Cell(format_score(value), value, bold=bold, faint=faint)


def number_cell(value: float | None, form: str = ",") -> Cell:
    """A number in a format such as `.3f`, by default with commas between thousands."""
    return Cell(MISSING if value is None else format(value, form), value)


def count_cell(value: float | None) -> Cell:
    """A count; 0 is faint."""
    return replace(number_cell(value), faint=value == 0)


def change_cell(value: float, *, bold: bool = False) -> Cell:
    """A change of a score, with its sign."""
    return Cell(format_difference(value), value, bold=bold)


def difference_cell(found: PairedDifference | None) -> Cell:
    """A difference of two methods; bold if it is significant."""
    if found is None:
        return Cell(MISSING)
    text = format_difference(found.mean, found.low, found.high)
    return Cell(text, found.mean, bold=found.significant)


def number_table(
    caption: str,
    heads: Sequence[str],
    names: Sequence[str],
    values: Iterable[Iterable[float | None]],
    cell: Callable[[float | None], Cell] = score_cell,
    *,
    wide: bool = False,
) -> Table:
    """A table of numbers `[names][heads - 1]`."""
    rows: list[Row] = [[name, *map(cell, line)] for name, line in zip(names, values, strict=True)]
    return Table(caption, heads, rows, wide=wide)
