"""Streams that are made in memory, by name; the tests run over all of them."""

from __future__ import annotations

from collections.abc import Callable

from sodap.streams.stream import Stream

Factory = Callable[[], Stream]

_FACTORIES: dict[str, Factory] = {}


def register_stream(name: str) -> Callable[[Factory], Factory]:
    """Make `load_stream(name)` call the decorated function, whose docstring describes it."""

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
