"""Streams that are generated in memory, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sodap.streams.stream import Stream

    Factory = Callable[[], Stream]

_FACTORIES: dict[str, Factory] = {}


def register_stream(name: str) -> Callable[[Factory], Factory]:
    """Decorator: `load_stream(name)` calls the function, whose docstring describes the stream."""

    def register(factory: Factory) -> Factory:
        if name in _FACTORIES:
            raise ValueError(f"a stream named '{name}' is registered already")
        _FACTORIES[name] = factory
        return factory

    return register


def stream_names() -> list[str]:
    return sorted(_FACTORIES)


def make_stream(name: str) -> Stream:
    return _FACTORIES[name]()
