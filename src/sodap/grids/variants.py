"""A method as a grid names it: as it is (`l2p`), or changed (`l2p@faithful`, `l2p@top_k=3`).

A variant shows what one option does: it takes the settings that the search chose for the plain
method, and differs from it in what its name says and in nothing else.
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
    """`key=value`, in the order of the alphabet; none for the plain method."""

    @property
    def name(self) -> str:
        """What its runs are called; reading it gives the same entry again."""
        return SIGN.join([self.method, *(change.removesuffix(YES) for change in self.changes)])

    @property
    def variant(self) -> str | None:
        """The name of a variant; None for the plain method."""
        return self.name if self.changes else None


def read_entry(text: str) -> Entry:
    """`METHOD@KEY=VALUE@...`; a key without a value is switched on."""
    method, *changes = text.split(SIGN)
    if not all(changes) or "/" in text:
        raise SodapError(f"'{text}' is no method and no variant of one, such as l2p@faithful")
    full = [change if "=" in change else change + YES for change in changes]
    keys = [change.partition("=")[0] for change in full]
    if len(set(keys)) < len(keys):
        raise SodapError(f"'{text}' sets one option twice")
    return Entry(method, tuple(sorted(full)))
