"""Images in: domains that arrive one after the other."""

from sodap.streams import sources as sources
from sodap.streams.augment import Augmentation
from sodap.streams.batches import Batches, at_hand
from sodap.streams.images import read_image, read_images
from sodap.streams.loading import load_stream, make_plan
from sodap.streams.registry import register_stream, stream_names
from sodap.streams.stream import Domain, MissingClassWarning, Split, Stage, Stream, union

__all__ = [
    "Augmentation",
    "Batches",
    "Domain",
    "MissingClassWarning",
    "Split",
    "Stage",
    "Stream",
    "at_hand",
    "load_stream",
    "make_plan",
    "read_image",
    "read_images",
    "register_stream",
    "stream_names",
    "union",
]
