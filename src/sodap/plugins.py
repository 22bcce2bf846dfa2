"""Methods, data sets and streams that other packages add through entry points."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any


class BrokenPluginWarning(UserWarning):
    """An entry point of another package cannot be used; all others can."""


@cache
def load_plugins(group: str, register: Callable[[str, Any], object]) -> None:
    """Load each entry point of a group and call `register(name, thing)`, once per process.

    Importing other packages takes time and may fail. So call this when a name is looked up, not
    at import. A broken entry point is left out with a warning.
    """
    for entry in entry_points(group=group):
        try:
            register(entry.name, entry.load())
        except Exception as error:  # another package may raise anything
            warnings.warn(
                f"the entry point '{entry.name}' ({entry.value}) of {group} is left out: {error}",
                BrokenPluginWarning,
                stacklevel=3,  # the caller that looked up a name
            )
