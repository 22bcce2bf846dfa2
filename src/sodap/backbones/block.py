"""The steps of timm's plain transformer block, so that methods can intervene between them."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from sodap.backbones.low_rank import BlockLora, linear
from sodap.errors import SodapError


def is_plain(block: nn.Module) -> TypeGuard[Block]:
    """Whether a block is timm's plain one, whose steps are written out in this module."""
    return (
        type(block) is Block
        and type(block.attn) is Attention
        and getattr(block.attn, "gate", None) is None
    )


def require_plain(block: nn.Module) -> Block:
    """Return the block if it is a plain one, or raise an error."""
    if not is_plain(block):
        raise SodapError(
            f"blocks of type {type(block).__name__} take no prefixes, no adapters and no "
            f"backprop=cls_row; choose a ViT with timm's plain blocks"
        )
    return block


def replace_cls(tokens: Tensor, cls: Tensor | None) -> Tensor:
    """Tokens `[B, N, D]` with another CLS token `[B, D]`, if one is given."""
    if cls is None:
        return tokens
    row = cls.to(tokens.dtype).unsqueeze(1)
    if torch.compiler.is_compiling() and not torch.is_grad_enabled():
        # torch.where fuses better than a copy, but its gradient would be a sum over all tokens.
        first = torch.arange(tokens.shape[1], device=tokens.device).view(1, -1, 1) == 0
        return torch.where(first, row, tokens)
    return torch.cat([row, tokens[:, 1:]], dim=1)


def qkv(
    block: Block, tokens: Tensor, lora: BlockLora | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of tokens `[B, N, D]`, each `[B, heads, N, width]`."""
    attention: Any = block.attn
    parts: Any = linear(attention.qkv, block.norm1(tokens), lora, "qkv")
    parts = parts.unflatten(-1, (3, attention.num_heads, attention.head_dim))
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    return attention.q_norm(q), attention.k_norm(k), v


def split_heads(extra: Tensor, like: Tensor) -> Tensor:
    """Reshape keys or values `[B, m, D]` to `[B, heads, m, width]`, as `like` is."""
    batch, count, _, width = like.shape
    return extra.to(like.dtype).reshape(batch, -1, count, width).transpose(1, 2)


def attend(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of M queries `[B, heads, M, width]`, with the block's dropout in training."""
    attention: Any = block.attn
    dropout = attention.attn_drop.p if attention.training else 0.0
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)


def add_attention(
    block: Block, tokens: Tensor, attended: Tensor, lora: BlockLora | None = None
) -> Tensor:
    """Tokens `[B, N, D]` plus the projected output of `attend`, `[B, heads, N, width]`."""
    attention: Any = block.attn
    heads = attention.norm(attended.transpose(1, 2).flatten(2))
    merged = linear(attention.proj, heads, lora, "proj")
    result: Tensor = tokens + block.drop_path1(block.ls1(attention.proj_drop(merged)))
    return result


def mlp_output(block: Block, tokens: Tensor, lora: BlockLora | None = None) -> Tensor:
    """What the MLP adds to tokens `[..., D]`."""
    mlp: Any = block.mlp
    x = block.norm2(tokens)
    if lora is None:
        x = mlp(x)
    else:  # the steps of timm's `Mlp`
        x = mlp.norm(mlp.drop1(mlp.act(linear(mlp.fc1, x, lora, "fc1"))))
        x = mlp.drop2(linear(mlp.fc2, x, lora, "fc2"))
    added: Tensor = block.drop_path2(block.ls2(x))
    return added


def add_mlp(block: Block, tokens: Tensor, lora: BlockLora | None = None) -> Tensor:
    """Tokens `[..., D]` plus what the MLP adds to them."""
    return tokens + mlp_output(block, tokens, lora)


def block_without_last_sum(
    block: Block, tokens: Tensor, added: Tensor | None, cls: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a block, but leave the last addition to the next one, which saves a pass over memory.

    Args:
        tokens: tokens of the block before, without what its MLP adds, `[B, N, D]`.
        added: what the MLP of the block before adds, `[B, N, D]`.
        cls: CLS token to use instead, `[B, D]`.

    Returns:
        Tokens, what this block's MLP adds to them, and the CLS token with it, `[B, D]`.
    """
    tokens = _block_input(tokens, added, cls)
    tokens = add_attention(block, tokens, attend(block, *qkv(block, tokens)))
    added = mlp_output(block, tokens)
    return tokens, added, tokens[:, 0] + added[:, 0]


def block_for_cls(
    block: Block,
    tokens: Tensor,
    added: Tensor | None,
    cls: Tensor | None,
    lora: BlockLora | None = None,
) -> Tensor:
    """Run a block for the CLS token only, `[B, 1, D]`; arguments as above."""
    tokens = _block_input(tokens, added, cls)
    q, k, v = qkv(block, tokens, lora)
    attended = attend(block, q[:, :, :1], k, v)
    return add_mlp(block, add_attention(block, tokens[:, :1], attended, lora), lora)


def _block_input(tokens: Tensor, added: Tensor | None, cls: Tensor | None) -> Tensor:
    if added is None:
        return replace_cls(tokens, cls)
    tokens = tokens + added
    if cls is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return replace_cls(tokens, cls)
    tokens[:, 0] = cls  # the sum is a new tensor, which nothing else refers to
    return tokens
