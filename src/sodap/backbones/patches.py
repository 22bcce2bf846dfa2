"""Embedding of images as tokens."""

from __future__ import annotations

import torch.nn.functional as F
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


def embed(vit: VisionTransformer, images: Tensor) -> Tensor:
    """Prepared images `[B, 3, S, S]` -> CLS, register and patch tokens `[B, N, D]`."""
    as_product = images.is_cuda and _is_product(vit.patch_embed)
    patches = _product(vit.patch_embed, images) if as_product else vit.patch_embed(images)
    tokens: Tensor = vit.norm_pre(vit.patch_drop(vit._pos_embed(patches)))
    return tokens


def _is_product(patches: nn.Module) -> bool:
    """Whether timm's patch embedding is one matrix product: patches that do not overlap."""
    return (
        type(patches) is PatchEmbed
        and patches.flatten
        and not patches.dynamic_img_pad
        and patches.proj.kernel_size == patches.proj.stride
    )


def _product(patches: PatchEmbed, images: Tensor) -> Tensor:
    """Patch embedding `[B, 3, S, S] -> [B, P, D]` as a matrix product.

    timm has a convolution, which takes several times as long on a GPU.
    """
    height, width = patches.proj.kernel_size
    batch, channels, tall, wide = images.shape
    cut = images.view(batch, channels, tall // height, height, wide // width, width)
    rows = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [B, P, 3·h·w]
    product = F.linear(rows, patches.proj.weight.flatten(1), patches.proj.bias)
    tokens: Tensor = patches.norm(product)
    return tokens
