"""What other packages announce through entry points: taken in, or left out with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from typing import Any


def register_announced(
    entries: Iterable[EntryPoint],
    register: Callable[[Any], object],
    what: str,
    broken: type[Warning],
) -> None:
    """Load each of the `entries` and `register` it; `what` it is and the warning are for people.

    Importing other packages takes time and can go wrong: call it once, when someone asks for a
    name.
    """
    for entry in entries:
        try:
            register(entry.load())
        except Exception as error:  # whatever a foreign package does, the others go on
            warnings.warn(
                f"the {what} '{entry.name}' ({entry.value}) is left out: {error}",
                broken,
                stacklevel=4,  # whoever asked for a name
            )
