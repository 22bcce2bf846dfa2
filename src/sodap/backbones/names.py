"""Names of backbones and what is known of them without torch and timm, which import slowly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from sodap.errors import SodapError

MICRO = "micro"
"""Name of the embedded network, which is trained on drawn digits."""

SHORT_NAMES: Mapping[str, str] = {
    "deit_tiny": "deit_tiny_patch16_224",
    "deit_small": "deit_small_patch16_224",
    "deit_base": "deit_base_patch16_224",
    # With the tag, because timm has changed the weights behind the bare name over the years.
    "vit_base": "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "dinov2_small": "vit_small_patch14_dinov2.lvd142m",
    "dinov2_base": "vit_base_patch14_dinov2.lvd142m",
}

_LARGEST_NATIVE_SIZE = 224
"""Larger native sizes are reduced to this one. All short names have it."""


def native_size(name: str) -> int:
    """Default image side of a backbone, in pixels."""
    if name == MICRO:
        return int(model_card()["architecture"]["img_size"])
    if name in SHORT_NAMES:
        return _LARGEST_NATIVE_SIZE
    architecture = timm_name(name)
    import timm

    config = timm.get_pretrained_cfg(architecture)
    native = _LARGEST_NATIVE_SIZE if config is None else config.input_size[-1]
    return min(native, _LARGEST_NATIVE_SIZE)


def timm_name(name: str) -> str:
    """Name of an architecture in timm; an error if there is none."""
    if name in SHORT_NAMES:
        return SHORT_NAMES[name]
    import timm

    if not timm.is_model(name):
        raise SodapError(
            f"no backbone is called '{name}'; give 'micro', one of "
            f"{', '.join(SHORT_NAMES)}, or the name of a timm ViT"
        )
    return name


def ask_for_backbone(images: str) -> SodapError:
    """The error for images that would be learned with `micro` only because nothing was chosen."""
    return SodapError(
        f"choose a backbone for {images}, because the embedded one, micro, only knows digits: "
        f"backbone=deit_tiny downloads its weights once; without a network add weights=FILE, with "
        f"model.safetensors from https://huggingface.co/timm/deit_tiny_patch16_224.fb_in1k"
    )


def model_card() -> dict[str, Any]:
    """Model card of the embedded network."""
    text = resources.files("sodap.backbones").joinpath("micro.json").read_text("utf-8")
    card: dict[str, Any] = json.loads(text)
    return card
