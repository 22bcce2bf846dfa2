"""Which part of a model forgets: everything before the head (B), or the head (C)?

A `[T, T, D]` holds the accuracy of the representation B_i of stage i with the head C_j of stage j
on domain d. The diagonal i = j is R. A swap of parts that never learned together also measures how
well they fit, so a loss under a foreign head is no proof that the head forgot. The control is a
probe: a fresh linear head, fitted to the domain's training images under B_i. What it still finds,
the representation has not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sodap.errors import SodapError


@dataclass(frozen=True)
class Effects:
    """What becomes of one domain from its own stage to the last one."""

    domain: int
    """Counted from 0; its own stage has the same number."""
    then: float
    """Accuracy right after its own stage: B_d with C_d."""
    representation: float
    """What the last representation changes under the head of then: B_T with C_d."""
    classifier: float
    """What the last head changes on the representation of then: B_d with C_T."""
    both: float
    """What really happened: B_T with C_T. Its negative is what was forgotten since then."""

    @property
    def interaction(self) -> float:
        """What the two changes do together beyond their sum: how much they belong together."""
        return self.both - self.representation - self.classifier


def effects(composed: ArrayLike) -> list[Effects]:
    """For every domain but the last, from A `[T, T, D]` with D ≥ T."""
    A = np.asarray(composed, np.float64)
    if A.ndim != 3 or A.shape[0] != A.shape[1] or A.shape[2] < A.shape[0]:
        raise SodapError(f"compositions are [stages, stages, domains], got {list(A.shape)}")
    last = len(A) - 1
    return [
        Effects(
            domain=d,
            then=float(A[d, d, d]),
            representation=float(A[last, d, d] - A[d, d, d]),
            classifier=float(A[d, last, d] - A[d, d, d]),
            both=float(A[last, last, d] - A[d, d, d]),
        )
        for d in range(last)
    ]


def mean_effects(found: Sequence[Effects]) -> dict[str, float] | None:
    """Averages over the domains; None where there is no old domain."""
    if not found:
        return None
    names = ("representation", "classifier", "both", "interaction")
    return {name: float(np.mean([getattr(each, name) for each in found])) for name in names}
