"""What a page is made of. A section is plain data: whoever tests it needs no browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cell:
    """Something in a table: what is read, what it sorts by, and how it looks."""

    text: str
    value: float | None = None
    """None sorts by the text."""
    bold: bool = False
    faint: bool = False
    shade: float | None = None
    """From 0 to 1: how strongly the cell is coloured, for tables that are heat maps, too."""


@dataclass(frozen=True)
class Table:
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    """The first cell names the row."""
    sortable: bool = False
    filters: Sequence[int] = ()
    """Columns with few values that a reader may choose from."""
    tags: Sequence[str] = ()
    """One a row: what in the page belongs to it and vanishes with it."""
    wide: bool = False

    def is_words(self, column: int) -> bool:
        """Whether a column is read from the left, as words are, and not compared as numbers are."""
        return not any(isinstance(row[column], Cell) for row in self.rows)


@dataclass(frozen=True)
class Drawing:
    """A figure, and the table behind it for those who cannot see it or want the digits."""

    name: str
    """Of its files, without an ending."""
    title: str
    figure: Figure
    caption: str
    tables: Sequence[Table] = ()
    wide: bool = False


@dataclass(frozen=True)
class Prose:
    """A paragraph; `words` between backticks are set as code."""

    text: str
    tone: Literal["plain", "note", "warning"] = "plain"


@dataclass(frozen=True)
class Facts:
    """A list of names and what there is to say about each."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Card:
    """A small table with a heading, beside others of its kind."""

    heading: str
    table: Table
    tag: str = ""


Block = Prose | Table | Drawing | Facts | Code | Card


@dataclass(frozen=True)
class Section:
    key: str
    """Its anchor in the page."""
    title: str
    blocks: Sequence[Block]

    @property
    def drawings(self) -> list[Drawing]:
        return [block for block in self.blocks if isinstance(block, Drawing)]
