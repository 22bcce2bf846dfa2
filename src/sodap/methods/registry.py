"""Methods by name: a new one is one decorated class, here or in a package that announces it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from sodap.backbones import FrozenViT
from sodap.errors import SodapError
from sodap.methods.base import Method
from sodap.plugins import load_plugins
from sodap.randomness import Randomness

PLUGINS = "sodap.methods"
"""The group of entry points through which other packages add methods."""

_METHODS: dict[str, type[Method]] = {}

M = TypeVar("M", bound=type[Method])


def register_method(method: M) -> M:
    if inspect.isabstract(method):
        lacking = sorted(method.__abstractmethods__)
    else:
        said = ("name", "family", "Config", "trains", "stores")
        lacking = [each for each in said if not getattr(method, each, None)]
    if lacking:
        raise TypeError(
            f"{method.__name__} does not fill the contract of a method: no {', '.join(lacking)}"
        )
    if _METHODS.setdefault(method.name, method) is not method:
        raise ValueError(f"a method named '{method.name}' is registered already")
    return method


def method_names() -> list[str]:
    load_plugins(PLUGINS, _register_plugin)
    return sorted(_METHODS)


def find_method(name: str) -> type[Method]:
    load_plugins(PLUGINS, _register_plugin)
    if name not in _METHODS:
        raise SodapError(f"no method is called '{name}'; there are: {', '.join(method_names())}")
    return _METHODS[name]


def _register_plugin(method: object) -> None:
    if not inspect.isclass(method) or not issubclass(method, Method):
        raise TypeError("it is no class that extends sodap.methods.Method")
    register_method(method)


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
