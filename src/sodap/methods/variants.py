"""Variants of a method: parts taken away or done another way, for `sodap ablate`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """A method with one part changed."""

    name: str
    """Short name, for `sodap ablate --only`."""
    title: str
    group: str
    """Heading in the method's own description of its parts; empty for the full method."""
    changes: tuple[str, ...]
    """`key=value`, on top of the settings of the full method."""


FULL = Variant("full", "full method", "", ())
