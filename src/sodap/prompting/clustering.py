"""Cluster centres by direction, as starting points of slots and keys."""

import torch
from torch import Tensor
from torch.nn import functional as F

ROUNDS = 10
"""Rounds of k-means; centres are only starting points, so they need not be converged."""


@torch.no_grad()
def cluster_centres(
    rows: Tensor, count: int, generator: torch.Generator, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Spherical k-means with k-means++ seeding: ``[n, d] -> [count, d], [n]``.

    Rows and centres have length one, and a row belongs to the centre with the largest cosine.
    With ``known`` centres ``[k, d]`` the new ones cover what these leave uncovered: rows that are
    nearest to a known centre do not move a new one. The second result is the index of each row's
    centre, known ones first.
    """
    rows = F.normalize(rows, dim=-1)
    fixed = rows.new_empty(0, rows.shape[-1]) if known is None else F.normalize(known, dim=-1)
    centres = torch.cat([fixed, _seeds(rows, count, generator, fixed)])
    for _ in range(ROUNDS):
        members = F.one_hot((rows @ centres.mT).argmax(-1), len(centres)).to(rows)  # [n, k]
        sums = members.mT @ rows
        moved = torch.where(members.sum(0).unsqueeze(-1) > 0, F.normalize(sums, dim=-1), centres)
        centres = torch.cat([fixed, moved[len(fixed) :]])
    return centres[len(fixed) :], (rows @ centres.mT).argmax(-1)


def _seeds(rows: Tensor, count: int, generator: torch.Generator, known: Tensor) -> Tensor:
    """Draw rows as centres, each with a probability proportional to its squared distance."""
    distance = rows.new_ones(len(rows))
    if len(known):
        distance = _distance(rows, known).amin(-1)
    seeds = []
    for _ in range(count):
        # All rows may lie on a centre already; then any row will do.
        drawn = torch.multinomial(distance + 1e-12, 1, generator=generator)
        seeds.append(rows[drawn])
        distance = torch.minimum(distance, _distance(rows, rows[drawn]).squeeze(-1))
    return torch.cat(seeds)


def _distance(rows: Tensor, centres: Tensor) -> Tensor:
    """Squared distances of unit rows ``[n, k]``."""
    return (2 - 2 * rows @ centres.mT).clamp(min=0)
