"""Frozen timm ViTs with ports for prompts, adapters and low-rank residuals."""

from typing import TYPE_CHECKING

from sodap.backbones.names import SHORT_NAMES, native_size
from sodap.lazy import lazy_attributes

if TYPE_CHECKING:
    from sodap.backbones.building import build_backbone, fetch_weights
    from sodap.backbones.lora import LoraLayout
    from sodap.backbones.ports import ClsPort, Lora, ParallelAdapter, Port, Prefix
    from sodap.backbones.vit import FrozenViT, PortedViT

__all__ = [
    "SHORT_NAMES",
    "ClsPort",
    "FrozenViT",
    "Lora",
    "LoraLayout",
    "ParallelAdapter",
    "Port",
    "PortedViT",
    "Prefix",
    "build_backbone",
    "fetch_weights",
    "native_size",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        **dict.fromkeys(("build_backbone", "fetch_weights"), "building"),
        "LoraLayout": "lora",
        **dict.fromkeys(("ClsPort", "Lora", "ParallelAdapter", "Port", "Prefix"), "ports"),
        **dict.fromkeys(("FrozenViT", "PortedViT"), "vit"),
    },
)
