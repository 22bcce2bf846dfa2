"""The two auxiliary losses on prompt values, equations (8) and (9)."""

import torch
from torch import Tensor
from torch.nn import functional as F

NO_SHARED_USAGE = 1e-12
"""Usage shared by two prompts below this counts as none: the ratio would be rounding error."""


def diversity_loss(values: Tensor, usage: Tensor, members: Tensor) -> Tensor:
    """Return the mean absolute cosine of prompt values, weighted by the usage of both prompts.

    ``values [N, d]`` (or ``[L, N, d]``, one pool per layer), ``usage [N]`` or ``[L, N]``, and
    ``members [N]``, the mask of S. The mean over layers; 0 where fewer than two members are used.
    """
    with torch.autocast(values.device.type, enabled=False):
        used = torch.where(members, usage, 0.0)
        unit = F.normalize(values.to(used.dtype), dim=-1)
        distinct = 1 - torch.eye(members.shape[0], dtype=used.dtype, device=used.device)
        similarity = (unit @ unit.mT).abs() * distinct  # [(L,) N, N]
        numerator = _over_pairs(used, similarity)
        denominator = _over_pairs(used, distinct)
        shared = denominator > NO_SHARED_USAGE
        ratio = numerator / torch.where(shared, denominator, 1.0)
        return torch.where(shared, ratio, 0.0).mean()


def norm_loss(values: Tensor, members: Tensor) -> Tensor:
    """Return the mean length of the members' values ``[..., N, d]``; ``members [N]`` is a mask."""
    lengths = torch.linalg.vector_norm(values, dim=-1)
    total = torch.where(members, lengths, 0.0).sum(-1)
    return (total / members.sum().clamp(min=1)).mean()


def _over_pairs(usage: Tensor, matrix: Tensor) -> Tensor:
    """``Σ_ij u_i u_j m_ij`` per layer: ``[..., N], [(...,) N, N] -> [...]``."""
    return ((usage.unsqueeze(-2) @ matrix).squeeze(-2) * usage).sum(-1)
