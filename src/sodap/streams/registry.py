"""Streams by name. A new one is a function with a name here; the tests run over all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.folder import folder_stream
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


def load_stream(name: str, image_size: int = 224) -> Stream:
    """A registered stream, or the folder of images at the path `name`, decoded to `image_size`."""
    if name in _FACTORIES:
        return _FACTORIES[name]()
    if Path(name).is_dir():
        return folder_stream(Path(name), image_size)
    raise SodapError(
        f"no stream is called '{name}' and no folder is there; "
        f"there are: {', '.join(stream_names())}"
    )
