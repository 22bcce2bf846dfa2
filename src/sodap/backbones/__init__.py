"""Frozen timm ViTs with ports for prompts and adapters."""

from typing import TYPE_CHECKING

from sodap.backbones.names import SHORT_NAMES, native_size
from sodap.lazy import lazy_attributes

if TYPE_CHECKING:
    from sodap.backbones.building import build_backbone
    from sodap.backbones.vit import ClsPort, FrozenViT, ParallelAdapter, Port, PortedViT, Prefix

__all__ = [
    "SHORT_NAMES",
    "ClsPort",
    "FrozenViT",
    "ParallelAdapter",
    "Port",
    "PortedViT",
    "Prefix",
    "build_backbone",
    "native_size",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "build_backbone": "building",
        **dict.fromkeys(
            ("ClsPort", "FrozenViT", "ParallelAdapter", "Port", "PortedViT", "Prefix"), "vit"
        ),
    },
)
