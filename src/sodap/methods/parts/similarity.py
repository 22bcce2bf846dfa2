"""Cosine similarities between queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-12
"""Smallest length of a vector in a cosine, as in `F.normalize`."""


def cosine_similarity(query: Tensor, keys: Tensor) -> Tensor:
    """`cos(q, K_n)`: `[..., B, D], [..., N, D] -> [..., B, N]`, at least in float32."""
    dtype = torch.promote_types(keys.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        return F.normalize(query.to(dtype), dim=-1) @ F.normalize(keys.to(dtype), dim=-1).mT


def attended_cosine_similarity(query: Tensor, attention: Tensor, keys: Tensor) -> Tensor:
    """`cos(q ∘ A_n, K_n)`: `[B, D], [L, N, D], [L, N, D] -> [L, B, N]`.

    Needs no tensor of size B x N x D: the product is `q · (A_n ∘ K_n)`, and the squared length of
    `q ∘ A_n` is `q² · A_n²`.
    """
    product = query @ (attention * F.normalize(keys, dim=-1)).mT
    squared = query.square() @ attention.square().mT
    return product / squared.clamp(min=EPS**2).sqrt()
