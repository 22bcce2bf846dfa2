"""Frozen timm ViTs with ports for prompts and adapters."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sodap.backbones.names import SHORT_NAMES, native_size

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


def __getattr__(name: str) -> Any:
    """Import torch and timm only when they are needed."""
    if name not in __all__:
        raise AttributeError(f"module 'sodap.backbones' has no attribute '{name}'")
    module = "building" if name == "build_backbone" else "vit"
    return getattr(import_module(f"sodap.backbones.{module}"), name)
