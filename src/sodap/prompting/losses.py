"""The two auxiliary losses on prompt values: differ from each other, and stay small."""

import torch
from torch import Tensor
from torch.nn import functional as F

# Usage shared by two prompts below this counts as none: the ratio would be of rounding errors.
NO_SHARED_USAGE = 1e-12


def diversity_loss(values: Tensor, usage: Tensor, members: Tensor) -> Tensor:
    """Mean similarity of prompt values, each pair weighed by how much both are used.

    ``values [N, d]`` (or ``[L, N, d]``, one pool per layer), ``usage [N]`` or ``[L, N]``, and
    ``members [N]``, the mask of S. The mean over layers; 0 where fewer than two members are used.
    """
    with torch.autocast(values.device.type, enabled=False):
        used = torch.where(members, usage, 0.0)
        unit = F.normalize(values.to(used.dtype), dim=-1)
        distinct = 1 - torch.eye(members.shape[0], dtype=used.dtype, device=used.device)
        similarity = (unit @ unit.mT).abs() * distinct  # [(L,) N, N]
        similar = _over_pairs(used, similarity)
        pairs = _over_pairs(used, distinct)
        shared = pairs > NO_SHARED_USAGE
        return torch.where(shared, similar / torch.where(shared, pairs, 1.0), 0.0).mean()


def norm_loss(values: Tensor, members: Tensor) -> Tensor:
    """Mean length of the members' values: ``values [..., N, d]``, ``members [N]``; 0 if empty."""
    lengths = torch.linalg.vector_norm(values, dim=-1)
    total = torch.where(members, lengths, 0.0).sum(-1)
    return (total / members.sum().clamp(min=1)).mean()


def _over_pairs(usage: Tensor, matrix: Tensor) -> Tensor:
    """``Σ_ij u_i u_j m_ij`` per layer: ``[..., N], [(...,) N, N] -> [...]``."""
    return ((usage.unsqueeze(-2) @ matrix).squeeze(-2) * usage).sum(-1)
