"""Methods by name. A new one is one file with one decorated class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from sodap.backbones import FrozenViT
from sodap.errors import SodapError
from sodap.methods.base import Method
from sodap.randomness import Randomness

_METHODS: dict[str, type[Method]] = {}

M = TypeVar("M", bound=type[Method])


def register_method(method: M) -> M:
    if method.name in _METHODS:
        raise ValueError(f"a method named '{method.name}' is registered already")
    _METHODS[method.name] = method
    return method


def method_names() -> list[str]:
    return sorted(_METHODS)


def find_method(name: str) -> type[Method]:
    if name not in _METHODS:
        raise SodapError(f"no method is called '{name}'; there are: {', '.join(method_names())}")
    return _METHODS[name]


def build_method(
    name: str,
    options: Mapping[str, Any],
    backbone: FrozenViT,
    classes: int,
    randomness: Randomness,
) -> Method:
    """A method with its options checked; every random number in it comes from `randomness`."""
    method = find_method(name)
    try:
        config = method.Config.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise SodapError(f"option '{key}' of {name}: {first['msg'].lower()}") from error
    return method(backbone, classes, randomness, config)
