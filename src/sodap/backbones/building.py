"""Construction of backbones: the embedded micro ViT, or any timm ViT with a class token."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from sodap.backbones.hub import fetch_pretrained
from sodap.backbones.names import MICRO, model_card, native_size, timm_name
from sodap.backbones.vit import FrozenViT
from sodap.backbones.weights import load_weights
from sodap.errors import SodapError


def build_backbone(
    name: str = MICRO,
    weights: str = "pretrained",
    image_size: int | None = None,
    *,
    seed: int = 0,
) -> FrozenViT:
    """Build a frozen backbone.

    Args:
        name: `micro`, one of `SHORT_NAMES`, or the name of a timm ViT.
        weights: `pretrained` (the embedded file for `micro`, timm's otherwise), `random` (drawn
            from `seed`), or the path of a safetensors or pth file.
        image_size: side of the images; by default the native one of the architecture, at most 224.
    """
    if name == MICRO:
        return _micro(weights, image_size, seed)
    size = image_size if image_size is not None else native_size(name)
    vit = _create(name, size, seed, pretrained=weights == "pretrained")
    if weights not in ("pretrained", "random"):
        load_weights(vit, Path(weights), timm_name(name))
    config: dict[str, Any] = vars(vit)["pretrained_cfg"]
    return FrozenViT(vit, name=name, mean=tuple(config["mean"]), std=tuple(config["std"]))


def fetch_weights(name: str, weights: str, say: Callable[[str], None] | None = None) -> None:
    """Download the weights that `build_backbone` would download, and say so before."""
    if name != MICRO and weights == "pretrained":
        fetch_pretrained(timm_name(name), name, say)


def _micro(weights: str, image_size: int | None, seed: int) -> FrozenViT:
    card = model_card()
    architecture: dict[str, Any] = card["architecture"]
    if image_size is not None:
        architecture |= {"img_size": image_size}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vit = VisionTransformer(**architecture)
    _check_patches(vit, MICRO)
    if weights == "pretrained":
        file = resources.files("sodap.backbones").joinpath("micro.safetensors")
        with resources.as_file(file) as path:
            load_weights(vit, path, MICRO)
    elif weights != "random":
        load_weights(vit, Path(weights), MICRO)
    return FrozenViT(vit, name=MICRO, mean=tuple(card["mean"]), std=tuple(card["std"]))


def _create(name: str, size: int, seed: int, *, pretrained: bool) -> VisionTransformer:
    architecture = timm_name(name)
    source = fetch_pretrained(architecture, name) if pretrained else None
    # `custom_load` is for files in the format of another library.
    overlay = {} if source is None else {"file": str(source), "custom_load": False}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            vit = timm.create_model(
                architecture,
                pretrained=pretrained,
                pretrained_cfg_overlay=overlay,
                num_classes=0,
                img_size=size,
            )
    except AssertionError as error:
        raise SodapError(f"{architecture} cannot take {size}-pixel images: {error}") from error
    except TypeError as error:  # not a ViT: it has no img_size
        raise SodapError(f"'{architecture}' is not a ViT with a class token") from error
    except Exception as error:
        if not pretrained:
            raise
        raise SodapError(
            f"timm's weights for {architecture} cannot be loaded ({type(error).__name__}); "
            f"give a file with weights=FILE"
        ) from error
    if not isinstance(vit, VisionTransformer) or vit.cls_token is None:
        raise SodapError(f"'{architecture}' is not a ViT with a class token")
    if not hasattr(vit.blocks[0], "attn"):
        raise SodapError(f"'{architecture}' is not a ViT with one attention per block")
    _check_patches(vit, architecture)
    return vit


def _check_patches(vit: VisionTransformer, name: str) -> None:
    size, patch = vit.patch_embed.img_size[0], vit.patch_embed.patch_size[0]
    if size % patch:
        raise SodapError(
            f"{name} cuts images into {patch}-pixel patches, which do not fill {size} pixels"
        )
