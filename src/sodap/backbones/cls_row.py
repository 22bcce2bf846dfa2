"""Blocks whose gradient flows along the CLS token only (`backprop=cls_row`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block
from torch import Tensor

from sodap.backbones.block import add_attention, add_mlp, qkv, replace_cls


def block_along_cls(block: Block, tokens: Tensor, cls: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """Run a block on all tokens as constants, and on the CLS token with gradients.

    Args:
        tokens: `[B, N, D]`.
        cls: CLS token to use, with gradients, `[B, D]`.
        last: compute no other token than CLS.

    Returns:
        All tokens without gradients, and CLS `[B, D]` with the value that it has among them and
        the gradient of its own path.
    """
    with torch.no_grad():
        tokens = replace_cls(tokens, cls)
        q, k, v = qkv(block, tokens)
        rows = slice(1 if last else None)
        attended = F.scaled_dot_product_attention(q[:, :, rows], k, v)
        tokens = add_mlp(block, add_attention(block, tokens[:, rows], attended))
    row = cls.to(tokens.dtype).unsqueeze(1)
    own = _first_order_attention(*qkv(block, row), q[:, :, :1], k, v, attended[:, :, :1])
    row = add_mlp(block, add_attention(block, row, own))
    return tokens, tokens[:, 0] + _gradient_only(row[:, 0])


def _first_order_attention(
    q0: Tensor, k0: Tensor, v0: Tensor, q: Tensor, k: Tensor, v: Tensor, attended: Tensor
) -> Tensor:
    """`attended` as a function of the query, key and value of CLS, correct to first order.

    All are `[B, heads, 1, width]`, but the constants `k` and `v` of all tokens, which are
    `[B, heads, N, width]`. The derivative of attention by its query is the covariance of keys and
    values under the attention weights. So the backward pass needs `[width, width]` numbers per
    head instead of all keys and values.
    """
    scale: float = q.shape[-1] ** -0.5
    with torch.no_grad():
        weights = (q * k).sum(-1, keepdim=True).mul(scale).softmax(2)  # [B, heads, N, 1]
        centred = v - attended
        covariance = (weights * k).mT @ centred
        # Copies, because views would keep all tokens alive until the backward pass.
        q, weight, own = q.clone(), weights[:, :, :1].clone(), centred[:, :, :1].clone()
    by_query = scale * (_gradient_only(q0) @ covariance)
    by_key = scale * (_gradient_only(k0) * q).sum(-1, keepdim=True) * weight * own
    return attended + by_query + by_key + weight * _gradient_only(v0)


def _gradient_only(tensor: Tensor) -> Tensor:
    """Zero in the forward pass, `tensor` in the backward pass."""
    return tensor - tensor.detach()
