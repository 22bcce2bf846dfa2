"""Parts of a page as plain data, which can be tested without a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure

from sodap.reporting.figures.style import WIDTH
from sodap.reporting.tables.table import Table


@dataclass(frozen=True)
class Paragraph:
    """Text; words between backticks are set as code."""

    text: str
    tone: Literal["plain", "note", "warning"] = "plain"


@dataclass(frozen=True)
class FigureBlock:
    """A figure with a caption, and tables with its numbers."""

    name: str
    """Name of its files, without suffix."""
    title: str
    """Description for screen readers; unique on a page."""
    figure: Figure
    caption: str
    tables: Sequence[Table] = ()
    wide: bool = False

    @property
    def least_width(self) -> int:
        """Fewest pixels at which its text can be read: one per point; more than a screen scrolls.

        A figure of the usual width fits on a phone, and is read there as well.
        """
        inches = self.figure.get_figwidth()
        return 0 if inches <= WIDTH else round(72 * inches)


@dataclass(frozen=True)
class Definitions:
    """A list of names and their descriptions."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class CodeBlock:
    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Card:
    """A table with a heading."""

    heading: str
    table: Table
    tag: str = ""
    """Tag of a table row; the card is hidden together with that row."""
    link: str = ""
    """Target of the heading."""


Block = Paragraph | Table | FigureBlock | Definitions | CodeBlock | Card


@dataclass(frozen=True)
class Section:
    key: str
    """Anchor in the page."""
    title: str
    blocks: Sequence[Block]

    @property
    def figures(self) -> list[FigureBlock]:
        return [block for block in self.blocks if isinstance(block, FigureBlock)]
