"""Every option of a method as a row to read: name, default, what it may be, what it means."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class Option:
    """One thing that can be set with `KEY=VALUE`."""

    name: str
    """With dots where settings lie in settings: `drift.window`."""
    default: str
    """A dash where there is none."""
    bounds: str
    """What it may be: `float, > 0, ≤ 4`, or the words to choose from, `a | b`."""
    meaning: str


def options_of(config: type[BaseModel], prefix: str = "") -> Iterator[Option]:
    """All options in the order in which they are written, nested ones in the place of theirs."""
    for name, field in config.model_fields.items():
        nested = _model(field.annotation)
        if nested is not None:
            yield from options_of(nested, f"{prefix}{name}.")
            continue
        default = "–" if field.is_required() else field.get_default(call_default_factory=True)
        yield Option(f"{prefix}{name}", _word(default), _bounds(field), field.description or "")


def _model(annotation: Any) -> type[BaseModel] | None:
    """The model behind an annotation, also where it may be None."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _word(value: Any) -> str:
    """A value as one would type it after `=`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_word, value))}]"
    return str(value)


def _bounds(field: FieldInfo) -> str:
    limits = [
        f"{sign} {_word(getattr(limit, key))}"
        for limit in field.metadata
        for key, sign in _SIGNS.items()
        if hasattr(limit, key)
    ]
    return ", ".join([_kind(field.annotation), *limits])


def _kind(annotation: Any) -> str:
    """What a value is, in a word: `int`, `true | false`, `a | b`, `list of int`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is bool:
        return "true | false"
    if annotation is type(None):
        return "none"
    if origin is Literal:
        return " | ".join(map(_word, parts))
    if origin in (Union, types.UnionType):
        return " | ".join(map(_kind, parts))
    if origin in (list, tuple):
        return f"list of {_kind(parts[0])}"
    return str(getattr(annotation, "__name__", annotation))
