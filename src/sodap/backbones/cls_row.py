"""Gradients along the CLS row: the value of the whole network, the gradient of one row of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block
from torch import Tensor

from sodap.backbones.block import after_attention, after_mlp, split, with_cls


def along(block: Block, tokens: Tensor, cls: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """timm's block twice: all tokens `[B, N, D]` as constants, and the CLS row `[B, D]` to learn.

    The row has the value that it has among all tokens, and the gradient of its own way. Of the last
    block, it is the only one that is read.
    """
    with torch.no_grad():
        tokens = with_cls(tokens, cls)
        q, k, v = split(block, tokens)
        read = slice(1 if last else None)
        seen = F.scaled_dot_product_attention(q[:, :, read], k, v)
        tokens = after_mlp(block, after_attention(block, tokens[:, read], seen))
    row = cls.to(tokens.dtype).unsqueeze(1)
    noticed = _first_order(*split(block, row), q[:, :, :1], k, v, seen[:, :, :1])
    row = after_mlp(block, after_attention(block, row, noticed))
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
