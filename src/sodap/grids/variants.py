"""Rows of a grid: a method as it is (`l2p`) or a variant (`l2p@faithful`, `l2p@top_k=3`).

A variant shows the effect of an option: it has the settings that the search chose for the plain
method and differs from it only in what its name says.
"""

from __future__ import annotations

from dataclasses import dataclass

from sodap.errors import SodapError

SIGN = "@"
YES = "=true"


@dataclass(frozen=True)
class Entry:
    """One row of a grid."""

    method: str
    changes: tuple[str, ...] = ()
    """`key=value`, sorted; none for the plain method."""

    @property
    def name(self) -> str:
        """Name of its runs; `read_entry` is the inverse."""
        return SIGN.join([self.method, *(change.removesuffix(YES) for change in self.changes)])

    @property
    def variant(self) -> str | None:
        """Name of a variant; None for the plain method."""
        return self.name if self.changes else None


def read_entry(text: str) -> Entry:
    """Parse `METHOD@KEY=VALUE@...`; a key without a value means `=true`."""
    method, *changes = text.split(SIGN)
    if not all(changes) or "/" in text:
        raise SodapError(f"'{text}' is not a method or a variant such as l2p@faithful")
    full = [change if "=" in change else change + YES for change in changes]
    keys = [change.partition("=")[0] for change in full]
    if len(set(keys)) < len(keys):
        raise SodapError(f"'{text}' sets one option twice")
    return Entry(method, tuple(sorted(full)))
