"""Errors that a user can cause and fix.

Each message is one sentence: what is wrong, where, and what to do. The command line prints it and
exits with code 2; from Python these are ordinary exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class SodapError(Exception):
    """Base class of all errors that are caused by the input, not by the program."""


class FolderBusyError(SodapError):
    """Another process holds the lock of a folder."""


class UnreadableImageError(SodapError):
    """An image file is missing, damaged, or of a kind that cannot be used."""


class TrainingBrokeError(SodapError):
    """A loss or an output of the model is not a finite number any more."""


def invalid(source: str, error: ValidationError) -> SodapError:
    """The first problem that pydantic found in `source`, as one sentence."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    given = first.get("input")
    shown = f" (got {given!r})" if isinstance(given, str | int | float | bool) else ""
    where = f"{source}, '{key}'" if key else source  # a conflict of two keys has no key
    message = first["msg"].lower().removeprefix("value error, ")
    return SodapError(f"{where}: {message}{shown}")
