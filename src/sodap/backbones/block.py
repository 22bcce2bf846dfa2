"""One of timm's plain blocks, taken step by step, so that something can happen in between."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from sodap.errors import SodapError


def is_known(block: nn.Module) -> TypeGuard[Block]:
    """Whether the steps of a block are known, so that they can be taken one by one."""
    return (
        type(block) is Block
        and type(block.attn) is Attention
        and getattr(block.attn, "gate", None) is None
    )


def known(block: nn.Module) -> Block:
    """The block itself, or an error that says what is missing."""
    if not is_known(block):
        raise SodapError(
            f"blocks of type {type(block).__name__} have no place for prefixes or adapters and no "
            f"CLS row of their own; choose a ViT with timm's plain blocks"
        )
    return block


def with_cls(tokens: Tensor, cls: Tensor | None) -> Tensor:
    """Tokens `[B, N, D]` with another CLS token `[B, D]`, if one is given."""
    if cls is None:
        return tokens
    row = cls.to(tokens.dtype).unsqueeze(1)
    if torch.compiler.is_compiling() and not torch.is_grad_enabled():
        # A choice fuses better than a copy. Its gradient, though, is a sum over all tokens.
        return torch.where(_is_first(tokens), row, tokens)
    return torch.cat([row, tokens[:, 1:]], dim=1)


def _is_first(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1], device=tokens.device).view(1, -1, 1) == 0


def split(block: Block, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of tokens `[B, N, D]`, each `[B, heads, N, width]`."""
    attention: Any = block.attn
    parts = attention.qkv(block.norm1(tokens))
    parts = parts.unflatten(-1, (3, attention.num_heads, attention.head_dim))
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    return attention.q_norm(q), attention.k_norm(k), v


def heads(extra: Tensor, like: Tensor) -> Tensor:
    """Keys or values `[B, m, D]` as the attention has its own: `[B, heads, m, width]`."""
    batch, count, _, width = like.shape
    return extra.to(like.dtype).reshape(batch, -1, count, width).transpose(1, 2)


def attend(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What each query sees, `[B, heads, M, width]`; in training, with the attention's dropout."""
    attention: Any = block.attn
    dropout = attention.attn_drop.p if attention.training else 0.0
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)


def after_attention(block: Block, tokens: Tensor, seen: Tensor) -> Tensor:
    """Tokens `[B, N, D]` with what their heads saw, `[B, heads, N, width]`."""
    attention: Any = block.attn
    seen = attention.proj(attention.norm(seen.transpose(1, 2).flatten(2)))
    met: Tensor = tokens + block.drop_path1(block.ls1(attention.proj_drop(seen)))
    return met


def by_mlp(block: Block, normal: Tensor) -> Tensor:
    """What the MLP adds to tokens that `norm2` made `normal`, `[..., D]`."""
    added: Tensor = block.drop_path2(block.ls2(block.mlp(normal)))
    return added


def after_mlp(block: Block, tokens: Tensor) -> Tensor:
    """Tokens `[..., D]` with what the MLP adds to them."""
    return tokens + by_mlp(block, block.norm2(tokens))


def through(
    block: Block, tokens: Tensor, added: Tensor | None, cls: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The whole block, but for the last addition: the tokens, and what the MLP adds to them.

    All `[B, N, D]`. `added` is what the MLP of the block before adds, and `cls` `[B, D]` another
    CLS token. The third answer is CLS as it leaves the block, `[B, D]`.
    """
    tokens = _arrived(tokens, added, cls)
    tokens = after_attention(block, tokens, attend(block, *split(block, tokens)))
    added = by_mlp(block, block.norm2(tokens))
    return tokens, added, tokens[:, 0] + added[:, 0]


def to_cls(block: Block, tokens: Tensor, added: Tensor | None, cls: Tensor | None) -> Tensor:
    """The same, of which CLS alone will be read, `[B, 1, D]`: all others only have been seen."""
    tokens = _arrived(tokens, added, cls)
    q, k, v = split(block, tokens)
    seen = attend(block, q[:, :, :1], k, v)
    return after_mlp(block, after_attention(block, tokens[:, :1], seen))


def _arrived(tokens: Tensor, added: Tensor | None, cls: Tensor | None) -> Tensor:
    """The tokens `[B, N, D]` that a block is to see: with what was added, and another CLS."""
    if added is None:
        return with_cls(tokens, cls)
    tokens = tokens + added
    if cls is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return with_cls(tokens, cls)
    tokens[:, 0] = cls  # the sum is nobody else's
    return tokens
