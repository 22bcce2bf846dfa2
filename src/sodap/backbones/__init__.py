"""The frozen network that every method shares."""

from sodap.backbones.registry import SHORT_NAMES, build_backbone, native_size
from sodap.backbones.vit import FrozenViT, Port

__all__ = ["SHORT_NAMES", "FrozenViT", "Port", "build_backbone", "native_size"]
