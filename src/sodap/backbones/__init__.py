"""Frozen timm ViTs with ports for prompts and adapters."""

from sodap.backbones.registry import SHORT_NAMES, build_backbone, native_size
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
