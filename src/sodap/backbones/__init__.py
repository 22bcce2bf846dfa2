"""The frozen network that every method shares."""

from sodap.backbones.registry import SHORT_NAMES, build_backbone, native_size
from sodap.backbones.vit import Beside, ClsPort, FrozenViT, Port, PortedViT, Prefix

__all__ = [
    "SHORT_NAMES",
    "Beside",
    "ClsPort",
    "FrozenViT",
    "Port",
    "PortedViT",
    "Prefix",
    "build_backbone",
    "native_size",
]
