"""Image streams: domains that arrive one after the other."""

from typing import TYPE_CHECKING

from sodap.lazy import lazy_attributes
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

__getattr__ = lazy_attributes(
    __name__,
    {
        **dict.fromkeys(("BatchLoader", "to_gpu_if_fits"), "batches"),
        **dict.fromkeys(
            ("Domain", "MissingClassWarning", "Split", "Stage", "Stream", "union"), "stream"
        ),
    },
)
