"""A frozen ViT with one port before every block.

The wrapper runs timm's own modules (patch embedding, positions, blocks, norm) and calls a *port*
with the tokens on their way into each block. A prompt method is a port and nothing else: no method
needs a ViT of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

Port = Callable[[int, Tensor], Tensor]
"""`(layer, tokens [B, P+S, D]) -> tokens` of the same shape, called before block `layer`.

Token 0 is CLS, `prefix_tokens` (P) counts it and any register tokens, the S patches follow."""


class FrozenViT(nn.Module):
    """Images in, CLS feature out; its weights never train and it never leaves eval mode."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        vit: VisionTransformer,
        *,
        name: str,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.vit = vit.eval().requires_grad_(False)
        self.name = name
        self.width: int = vit.embed_dim
        self.depth: int = len(vit.blocks)
        self.heads: int = cast(Any, vit.blocks[0]).attn.num_heads
        self.image_size: int = vit.patch_embed.img_size[0]
        self.prefix_tokens: int = vit.num_prefix_tokens
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> FrozenViT:
        """A frozen network has no training mode: dropout and the like stay off."""
        return super().train(False)

    def prepare(self, images: Tensor) -> Tensor:
        """uint8 or [0, 1] float images `[B, 3, H, W]` -> what the network was trained on."""
        if images.shape[-2:] != (self.image_size, self.image_size):
            if images.dtype == torch.uint8:
                images = images.float().div_(255)
            size = (self.image_size, self.image_size)
            images = F.interpolate(images, size, mode="bicubic", antialias=True).clamp_(0, 1)
        if images.dtype == torch.uint8:  # one new tensor, the rest in place
            return images.float().sub_(255 * self.mean).div_(255 * self.std)
        return (images - self.mean).div_(self.std)

    def forward(self, images: Tensor, port: Port | None = None, *, norm: bool = True) -> Tensor:
        """Prepared images `[B, 3, S, S]` -> CLS feature `[B, D]`, after the final LayerNorm."""
        vit = self.vit
        tokens = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
        for layer, block in enumerate(vit.blocks):
            if port is not None:
                tokens = port(layer, tokens)
            tokens = block(tokens)
        cls = tokens[:, 0]
        return cast(Tensor, vit.norm(cls) if norm else cls)

    def digest(self) -> str:
        """A fingerprint of every weight: two models agree on a feature only if these agree."""
        sha = hashlib.sha256()
        for key, value in sorted(self.vit.state_dict().items()):
            sha.update(f"{key}{list(value.shape)}".encode())
            sha.update(value.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        return sha.hexdigest()
