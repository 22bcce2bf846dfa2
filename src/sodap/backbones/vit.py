"""A ViT with ports, and its frozen form.

The wrapper runs timm's own modules (patch embedding, positions, blocks, norm) and opens each block
in a few places. A prompt method is what it puts into a port and nothing else: no method needs a
ViT of its own.

              port, cls                     prefix                         beside
    tokens ──▶ (edit, or ──▶ norm ──▶ attention over keys ──▶ + ──▶ norm ──▶ MLP ──▶ + ──▶ next
                add, tokens)           and values as well               and an adapter
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any, TypeGuard, cast

import torch
import torch._dynamo
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from sodap.errors import SodapError

_PROGRAMS = 32
"""How many variants of a block torch.compile may keep; it gives up at 8 unless told."""

Port = Callable[[int, Tensor], Tensor]
"""`(layer, tokens [B, P+S, D]) -> tokens`, called before block `layer`.

Token 0 is CLS, `prefix_tokens` (P) counts it and any register tokens, the S patches follow. What it
returns may be longer: further tokens go the whole way, too."""

ClsPort = Callable[[int, Tensor], Tensor]
"""`(layer, tokens [B, P+S, D]) -> the CLS token [B, D]` that block `layer` is to see instead."""

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
        self._through = _through
        self._to_cls = _to_cls
        self._along = _along
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

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
        vit = self.vit
        tokens: Tensor = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
        for layer, block in enumerate(vit.blocks):
            if port is not None:
                tokens = port(layer, tokens)
            given = None if cls is None else cls(layer, tokens)
            extra = None if prefix is None else prefix(layer, tokens)
            if extra is not None or beside is not None:
                tokens = _opened(block, layer, _with_cls(tokens, given), extra, beside)
            elif only_cls and layer == self.depth - 1 and _is_known(block):
                tokens = self._to_cls(block, tokens, given)
            else:
                tokens = self._through(block, tokens, given)
        return tokens[:, :1] if only_cls else tokens

    def along_cls(self, images: Tensor, *, cls: ClsPort, norm: bool = True) -> Tensor:
        """What `forward` answers; gradients go along the CLS row only, `[B, D]`.

        A frozen network is assumed. The other tokens are constants: that they have seen earlier CLS
        tokens is left out of the gradient, and with it nearly all of the backward pass. So `cls` is
        shown all tokens before the first block, and from then on CLS alone, `[B, 1, D]`.
        """
        if not torch.is_grad_enabled():
            return cast(Tensor, self(images, cls=cls, norm=norm))
        vit = self.vit
        with torch.no_grad():
            tokens = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
        given = cls(0, tokens)
        for layer, block in enumerate(vit.blocks, start=1):
            tokens, last = self._along(_known(block), tokens, given, layer == self.depth)
            if layer < self.depth:
                given = cls(layer, last.unsqueeze(1))
        return self.norm(last) if norm else last

    def compile_blocks(self) -> None:
        """Let torch.compile fuse each block, with the exchange of CLS before it, from now on.

        The blocks are alike, so they share one compiled program; learning and predicting, full
        batches and the last one of an epoch each want one of their own.
        """
        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, _PROGRAMS)
        self._through = torch.compile(_through)
        self._to_cls = torch.compile(_to_cls)
        self._along = torch.compile(_along)

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


def _with_cls(tokens: Tensor, cls: Tensor | None) -> Tensor:
    if cls is None:
        return tokens
    return torch.cat([cls.to(tokens.dtype).unsqueeze(1), tokens[:, 1:]], dim=1)


def _through(block: nn.Module, tokens: Tensor, cls: Tensor | None) -> Tensor:
    """One of timm's blocks, with another CLS token `[B, D]` if one is given."""
    passed: Tensor = block(_with_cls(tokens, cls))
    return passed


def _to_cls(block: Block, tokens: Tensor, cls: Tensor | None) -> Tensor:
    """The same, of which CLS alone will be read, `[B, 1, D]`: all others only have been seen."""
    tokens = _with_cls(tokens, cls)
    q, k, v = _split(block, tokens)
    seen = _attend(block, q[:, :, :1], k, v)
    return _after_mlp(block, _after_attention(block, tokens[:, :1], seen))


def _is_known(block: nn.Module) -> TypeGuard[Block]:
    """Whether the steps of a block are known, so that they can be taken one by one."""
    return (
        isinstance(block, Block)
        and isinstance(block.attn, Attention)
        and getattr(block.attn, "gate", None) is None
    )


def _known(block: nn.Module) -> Block:
    if not _is_known(block):
        raise SodapError(
            f"blocks of type {type(block).__name__} have no place for prefixes or adapters and no "
            f"CLS row of their own; choose a ViT with timm's plain blocks"
        )
    return block


def _opened(
    block: nn.Module,
    layer: int,
    tokens: Tensor,
    prefix: tuple[Tensor, Tensor] | None,
    beside: Beside | None,
) -> Tensor:
    """timm's block, step by step, with its two inner ports."""
    block = _known(block)
    q, k, v = _split(block, tokens)
    if prefix is not None:
        k, v = (torch.cat([_heads(e, k), own], 2) for e, own in zip(prefix, (k, v), strict=True))
    tokens = _after_attention(block, tokens, _attend(block, q, k, v))
    added = None if beside is None else beside(layer, tokens)
    tokens = _after_mlp(block, tokens)
    return tokens if added is None else tokens + added


def _along(block: Block, tokens: Tensor, cls: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """timm's block twice: all tokens `[B, N, D]` as constants, and the CLS row `[B, D]` to learn.

    The row has the value that it has among all tokens, and the gradient of its own way. Of the last
    block, it is the only one that is read.
    """
    with torch.no_grad():
        tokens = _with_cls(tokens, cls)
        q, k, v = _split(block, tokens)
        read = slice(1 if last else None)
        seen = F.scaled_dot_product_attention(q[:, :, read], k, v)
        tokens = _after_mlp(block, _after_attention(block, tokens[:, read], seen))
    row = cls.to(tokens.dtype).unsqueeze(1)
    noticed = _first_order(*_split(block, row), q[:, :, :1], k, v, seen[:, :, :1])
    row = _after_mlp(block, _after_attention(block, row, noticed))
    return tokens, tokens[:, 0] + _gradient_of(row[:, 0])


def _first_order(
    q0: Tensor, k0: Tensor, v0: Tensor, q: Tensor, k: Tensor, v: Tensor, seen: Tensor
) -> Tensor:
    """What the CLS row saw, `seen`, as a function of its own query, key and value.

    All `[B, heads, 1, width]`, the constants `k` and `v` of all tokens `[B, heads, N, width]`.

    How attention moves with its query is the covariance of keys and values under its weights. So
    `[width, width]` numbers a head are kept for the backward pass instead of all keys and values.
    """
    scale: float = q.shape[-1] ** -0.5
    with torch.no_grad():
        weights = (q * k).sum(-1, keepdim=True).mul(scale).softmax(2)  # [B, heads, N, 1]
        apart = v - seen
        covariance = (weights * k).mT @ apart
        # Copies: a view would keep all tokens alive until the backward pass.
        q, weight, away = q.clone(), weights[:, :, :1].clone(), apart[:, :, :1].clone()
    by_query = scale * (_gradient_of(q0) @ covariance)
    by_key = scale * (_gradient_of(k0) * q).sum(-1, keepdim=True) * weight * away
    return seen + by_query + by_key + weight * _gradient_of(v0)


def _gradient_of(changing: Tensor) -> Tensor:
    """Zero in the forward pass, `changing` in the backward pass."""
    return changing - changing.detach()


def _split(block: Block, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of tokens `[B, N, D]`, each `[B, heads, N, width]`."""
    attention: Any = block.attn
    parts = attention.qkv(block.norm1(tokens))
    parts = parts.unflatten(-1, (3, attention.num_heads, attention.head_dim))
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    return attention.q_norm(q), attention.k_norm(k), v


def _attend(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What each query sees, `[B, heads, M, width]`; in training, with the attention's dropout."""
    attention: Any = block.attn
    dropout = attention.attn_drop.p if attention.training else 0.0
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)


def _heads(extra: Tensor, like: Tensor) -> Tensor:
    """Keys or values `[B, m, D]` as the attention has its own: `[B, heads, m, width]`."""
    batch, heads, _, width = like.shape
    return extra.to(like.dtype).reshape(batch, -1, heads, width).transpose(1, 2)


def _after_attention(block: Block, tokens: Tensor, seen: Tensor) -> Tensor:
    """Tokens `[B, N, D]` with what their heads saw, `[B, heads, N, width]`."""
    attention: Any = block.attn
    seen = attention.proj(attention.norm(seen.transpose(1, 2).flatten(2)))
    met: Tensor = tokens + block.drop_path1(block.ls1(attention.proj_drop(seen)))
    return met


def _after_mlp(block: Block, tokens: Tensor) -> Tensor:
    passed: Tensor = tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))
    return passed
