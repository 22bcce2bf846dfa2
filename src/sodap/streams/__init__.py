"""Image streams: domains that arrive one after the other."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sodap.streams import sources as sources
from sodap.streams.augmentation import Augmentation
from sodap.streams.images import read_image, read_images
from sodap.streams.loading import load_stream, make_plan
from sodap.streams.registry import register_stream, stream_names

if TYPE_CHECKING:
    from sodap.streams.batches import BatchLoader, to_gpu_if_fits
    from sodap.streams.stream import Domain, MissingClassWarning, Split, Stage, Stream, union

__all__ = [
    "Augmentation",
    "BatchLoader",
    "Domain",
    "MissingClassWarning",
    "Split",
    "Stage",
    "Stream",
    "load_stream",
    "make_plan",
    "read_image",
    "read_images",
    "register_stream",
    "stream_names",
    "to_gpu_if_fits",
    "union",
]

_LAZY = {
    **dict.fromkeys(("BatchLoader", "to_gpu_if_fits"), "batches"),
    **dict.fromkeys(
        ("Domain", "MissingClassWarning", "Split", "Stage", "Stream", "union"), "stream"
    ),
}


def __getattr__(name: str) -> Any:
    """Import torch only when tensors are needed, so that `sodap data list` starts fast."""
    if name not in _LAZY:
        raise AttributeError(f"module 'sodap.streams' has no attribute '{name}'")
    return getattr(import_module(f"sodap.streams.{_LAZY[name]}"), name)
