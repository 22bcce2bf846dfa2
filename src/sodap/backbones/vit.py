"""A ViT with ports, and its frozen form.

The wrapper runs timm's own modules (patch embedding, positions, the parts of its blocks, norm) and
opens each block in a few places. A prompt method is what it puts into a port and nothing else: no
method needs a ViT of its own.

              port, cls                     prefix                         beside
    tokens ──▶ (edit, or ──▶ norm ──▶ attention over keys ──▶ + ──▶ norm ──▶ MLP ──▶ + ──▶ next
                add, tokens)           and values as well               and an adapter
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any, cast

import torch
import torch._dynamo
import torch.nn.functional as F
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from sodap.backbones.block import (
    after_attention,
    after_mlp,
    attend,
    heads,
    is_known,
    known,
    split,
    through,
    to_cls,
    with_cls,
)
from sodap.backbones.cls_row import along
from sodap.backbones.patches import embed

_PROGRAMS = 32
"""How many variants of a block torch.compile may keep; it gives up at 8 unless told."""

Port = Callable[[int, Tensor], Tensor]
"""`(layer, tokens [B, P+S, D]) -> tokens`, called before block `layer`.

Token 0 is CLS, `prefix_tokens` (P) counts it and any register tokens, the S patches follow. What it
returns may be longer: further tokens go the whole way, too."""

ClsPort = Callable[[int, Tensor], Tensor]
"""`(layer, tokens) -> the CLS token [B, D]` that block `layer` is to see instead.

It is shown all tokens `[B, P+S, D]` before the first block, and from then on CLS alone,
`[B, 1, D]`."""

Prefix = Callable[[int, Tensor], tuple[Tensor, Tensor] | None]
"""`(layer, tokens) -> (keys, values)`, each `[B, m, D]`, that block `layer` attends to besides its
own; None for none. They meet no projection and no norm, and they add no token."""

Beside = Callable[[int, Tensor], Tensor | None]
"""`(layer, tokens after attention [B, N, D]) -> what is added beside the MLP`, the same shape."""


class PortedViT(nn.Module):
    """Images in, CLS feature out, with ports inside every block."""

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
        self.vit = vit
        self.name = name
        self.width: int = vit.embed_dim
        self.depth: int = len(vit.blocks)
        self.heads: int = cast(Any, vit.blocks[0]).attn.num_heads
        self.image_size: int = vit.patch_embed.img_size[0]
        self.prefix_tokens: int = vit.num_prefix_tokens
        self._standardised = _standardised
        self._embed = embed
        self._whole = _whole
        self._through = through
        self._to_cls = to_cls
        self._along = along
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def prepare(self, images: Tensor) -> Tensor:
        """uint8 or [0, 1] float images `[B, 3, H, W]` -> what the network was trained on.

        An image that is not square is seen like a file: its centre is.
        """
        size = (self.image_size, self.image_size)
        images = _centre(images)
        if images.shape[-2:] != size:
            if images.dtype == torch.uint8:
                images = images.float().div_(255)
            images = F.interpolate(images, size, mode="bicubic", antialias=True).clamp_(0, 1)
        return self._standardised(images, self.mean, self.std)

    def pixels(self, prepared: Tensor) -> Tensor:
        """The inverse of `prepare`, for methods that keep images: uint8 `[B, 3, S, S]`."""
        return (prepared * self.std + self.mean).mul(255).round_().clamp_(0, 255).to(torch.uint8)

    def forward(
        self,
        images: Tensor,
        port: Port | None = None,
        *,
        cls: ClsPort | None = None,
        prefix: Prefix | None = None,
        beside: Beside | None = None,
        norm: bool = True,
    ) -> Tensor:
        """Prepared images `[B, 3, S, S]` -> CLS feature `[B, D]`, after the final LayerNorm."""
        ports: dict[str, Any] = {"cls": cls, "prefix": prefix, "beside": beside}
        last = self.tokens(images, port, **ports, only_cls=True)[:, 0]
        return self.norm(last) if norm else last

    def tokens(
        self,
        images: Tensor,
        port: Port | None = None,
        *,
        cls: ClsPort | None = None,
        prefix: Prefix | None = None,
        beside: Beside | None = None,
        only_cls: bool = False,
    ) -> Tensor:
        """All tokens as they leave the last block, `[B, N, D]`, not normalised.

        With `only_cls` it is CLS alone, `[B, 1, D]`: then nobody reads what the last block makes of
        the others, and the last block, a twelfth of a ViT-B, does not make it.
        """
        tokens = self._embed(self.vit, images)
        plain = port is None and prefix is None and beside is None
        if plain and all(is_known(block) and not _is_heard(block) for block in self.vit.blocks):
            return self._between_ports(tokens, cls, only_cls)
        for layer, block in enumerate(self.vit.blocks):
            if port is not None:
                tokens = port(layer, tokens)
            if cls is not None:
                tokens = with_cls(tokens, cls(layer, tokens if layer == 0 else tokens[:, :1]))
            extra = None if prefix is None else prefix(layer, tokens)
            if extra is not None or beside is not None:
                tokens = _opened(known(block), layer, tokens, extra, beside)
            elif only_cls and layer == self.depth - 1 and is_known(block):
                tokens = self._to_cls(block, tokens, None, None)
            else:
                tokens = self._whole(block, tokens)
        return tokens[:, :1] if only_cls else tokens

    def _between_ports(self, tokens: Tensor, cls: ClsPort | None, only_cls: bool) -> Tensor:
        """As above, without a port that wants all tokens.

        Then nobody has to see what an MLP added before the next block does, and adding it there
        saves a way through memory.
        """
        *blocks, last = cast(Any, self.vit.blocks)
        added, given = None, None if cls is None else cls(0, tokens)
        for layer, block in enumerate(blocks, start=1):
            tokens, added, row = self._through(block, tokens, added, given)
            given = None if cls is None else cls(layer, row.unsqueeze(1))
        if only_cls:
            return self._to_cls(last, tokens, added, given)
        tokens, added, _ = self._through(last, tokens, added, given)
        return tokens + added

    def along_cls(self, images: Tensor, *, cls: ClsPort, norm: bool = True) -> Tensor:
        """What `forward` answers; gradients go along the CLS row only, `[B, D]`.

        A frozen network is assumed. The other tokens are constants: that they have seen earlier CLS
        tokens is left out of the gradient, and with it nearly all of the backward pass.
        """
        if not torch.is_grad_enabled():
            return cast(Tensor, self(images, cls=cls, norm=norm))
        with torch.no_grad():
            tokens = self._embed(self.vit, images)
        given = cls(0, tokens)
        for layer, block in enumerate(self.vit.blocks, start=1):
            tokens, last = self._along(known(block), tokens, given, layer == self.depth)
            if layer < self.depth:
                given = cls(layer, last.unsqueeze(1))
        return self.norm(last) if norm else last

    def compile_blocks(self) -> None:
        """Let torch.compile fuse each block, with the exchange of CLS before it, from now on.

        The blocks are alike, so they share one compiled program; learning, predicting and every
        size of batch want one of their own.
        """
        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, _PROGRAMS)
        self._standardised = torch.compile(_standardised)
        self._embed = torch.compile(embed)
        self._whole = torch.compile(_whole)
        self._through = torch.compile(through)
        self._to_cls = torch.compile(to_cls)
        self._along = torch.compile(along)

    def norm(self, tokens: Tensor) -> Tensor:
        """The final LayerNorm, `[..., D]`."""
        return cast(Tensor, self.vit.norm(tokens))

    def digest(self) -> str:
        """A fingerprint of every weight: two models agree on a feature only if these agree."""
        sha = hashlib.sha256()
        for key, value in sorted(self.vit.state_dict().items()):
            sha.update(f"{key}{list(value.shape)}".encode())
            sha.update(value.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        return sha.hexdigest()


class FrozenViT(PortedViT):
    """A ViT whose weights never train and that never leaves eval mode."""

    def __init__(
        self,
        vit: VisionTransformer,
        *,
        name: str,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__(vit.eval().requires_grad_(False), name=name, mean=mean, std=std)
        self._digest: str | None = None

    def digest(self) -> str:
        return self._digest or super().digest()

    def round_weights(self, dtype: torch.dtype) -> None:
        """Keep matrices in the precision in which autocast would use them, once and for all.

        Products do not change by a bit; what is saved is a copy of every matrix at every step.
        """
        self._digest = self.digest()  # of the weights as they came
        for module in self.vit.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.to(dtype)

    def train(self, mode: bool = True) -> FrozenViT:
        """A frozen network has no training mode: dropout and the like stay off."""
        return super().train(False)

    def thawed(self) -> PortedViT:
        """A copy that may train, for methods that change every weight; this one stays as it is."""
        vit = copy.deepcopy(self.vit).float().requires_grad_(True)
        mean, std = (tuple(t.flatten().tolist()) for t in (self.mean, self.std))
        return PortedViT(vit, name=self.name, mean=mean, std=std)


def _centre(images: Tensor) -> Tensor:
    """The square in the middle; a pixel longer where it would begin and end in half a pixel."""
    high, wide = images.shape[-2:]
    side = min(high, wide)
    top, left = (high - side) // 2, (wide - side) // 2
    return images[..., top : high - top, left : wide - left]


def _is_heard(block: nn.Module) -> bool:
    """Whether somebody waits for it to be called as a whole."""
    return bool(block._forward_hooks or block._forward_pre_hooks)


def _whole(block: nn.Module, tokens: Tensor) -> Tensor:
    """One of timm's blocks, as it is."""
    passed: Tensor = block(tokens)
    return passed


def _standardised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """`(images - mean) / std`, of numbers from 0 to 255 or from 0 to 1; one new tensor."""
    if images.dtype == torch.uint8:
        return images.float().sub_(255 * mean).div_(255 * std)
    return (images - mean).div_(std)


def _opened(
    block: Block,
    layer: int,
    tokens: Tensor,
    prefix: tuple[Tensor, Tensor] | None,
    beside: Beside | None,
) -> Tensor:
    """timm's block, step by step, with its two inner ports."""
    q, k, v = split(block, tokens)
    if prefix is not None:
        k, v = (torch.cat([heads(e, k), own], 2) for e, own in zip(prefix, (k, v), strict=True))
    tokens = after_attention(block, tokens, attend(block, q, k, v))
    added = None if beside is None else beside(layer, tokens)
    tokens = after_mlp(block, tokens)
    return tokens if added is None else tokens + added
