"""Ready streams by name, such as those generated in memory; other packages can add their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sodap.errors import SodapError
from sodap.plugins import load_plugins

if TYPE_CHECKING:
    from sodap.streams.stream import Stream

    Factory = Callable[[], Stream]

PLUGINS = "sodap.streams"
"""The group of entry points through which other packages add streams."""

_FACTORIES: dict[str, Factory] = {}


def register_stream(name: str) -> Callable[[Factory], Factory]:
    """Decorator: `load_stream(name)` calls the function, whose docstring describes the stream."""

    def register(factory: Factory) -> Factory:
        if _FACTORIES.setdefault(name, factory) is not factory:
            raise ValueError(f"a stream named '{name}' is registered already")
        return factory

    return register


def stream_names() -> list[str]:
    """Names of all ready streams, sorted."""
    load_plugins(PLUGINS, _register_plugin)
    return sorted(_FACTORIES)


def make_stream(name: str) -> Stream:
    """Make the ready stream of this name."""
    from sodap.streams.stream import Stream

    made = _FACTORIES[name]()
    if not isinstance(made, Stream):  # the function may be another package's
        raise SodapError(f"the stream '{name}' is a {type(made).__name__}, not a sodap Stream")
    return made


def _register_plugin(name: str, factory: object) -> None:
    if not callable(factory):
        raise TypeError(f"it is a {type(factory).__name__}, not a function that returns a stream")
    register_stream(name)(factory)
