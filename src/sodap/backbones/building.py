"""Construction of backbones: the embedded micro ViT, or any timm ViT with a class token."""

from __future__ import annotations

import logging
from importlib import resources
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer

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
    architecture = timm_name(name)
    size = image_size if image_size is not None else native_size(name)
    vit = _create(architecture, size, seed, pretrained=weights == "pretrained")
    if weights not in ("pretrained", "random"):
        load_weights(vit, Path(weights), architecture)
    config: dict[str, Any] = vars(vit)["pretrained_cfg"]
    return FrozenViT(vit, name=name, mean=tuple(config["mean"]), std=tuple(config["std"]))


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


def _create(architecture: str, size: int, seed: int, *, pretrained: bool) -> VisionTransformer:
    # Without a network the hub logs every attempt; the error below says enough.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            vit = timm.create_model(
                architecture, pretrained=pretrained, num_classes=0, img_size=size
            )
    except AssertionError as error:
        raise SodapError(f"{architecture} cannot take {size}-pixel images: {error}") from error
    except TypeError as error:  # not a ViT: it has no img_size
        raise SodapError(f"'{architecture}' is not a ViT with a class token") from error
    except Exception as error:
        if not pretrained:
            raise
        raise SodapError(
            f"timm's weights for {architecture} cannot be downloaded ({type(error).__name__}); "
            f"download them on a machine with a network and give the file with weights=FILE"
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
