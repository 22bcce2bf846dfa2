"""Options of a method as rows of a table: name, default, bounds and meaning."""

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
    """An option that can be set with `KEY=VALUE`."""

    name: str
    """Name of the option; that of a nested one has dots: `drift.window`."""
    default: str
    """The default as a user would type it; a dash if there is none."""
    bounds: str
    """Type and bounds, `float, > 0, ≤ 4`, or the values to choose from, `a | b`."""
    meaning: str


def options_of(config: type[BaseModel], prefix: str = "") -> Iterator[Option]:
    """All options of a config in the order of their definition, nested ones included."""
    for name, field in config.model_fields.items():
        nested = _model(field.annotation)
        if nested is not None:
            yield from options_of(nested, f"{prefix}{name}.")
            continue
        default = "–" if field.is_required() else field.get_default(call_default_factory=True)
        yield Option(f"{prefix}{name}", _word(default), _bounds(field), field.description or "")


def _model(annotation: Any) -> type[BaseModel] | None:
    """The nested config in an annotation `Config` or `Config | None`, if there is one."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _word(value: Any) -> str:
    """A value as a user would type it after `=`."""
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
    """Type of a value in words: `int`, `true | false`, `a | b`, `list of int`."""
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
