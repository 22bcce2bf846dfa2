"""Effects of cross-composition: does the representation (B) or the head (C) forget?

A `[T, T, D]` holds the accuracy of the representation B_i of stage i with the head C_j of stage j
on domain d; its diagonal i = j is R. Parts that were not trained together may not fit, so a loss
under another head does not prove that the head forgot. The control is a probe: a fresh linear head,
fitted to the domain's training images under B_i. What the probe still finds is not lost from the
representation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sodap.errors import SodapError


@dataclass(frozen=True)
class Effects:
    """Changes of the accuracy of one domain from its own stage to the last."""

    domain: int
    """Index of the domain, from 0; its own stage has the same index."""
    then: float
    """Accuracy right after its own stage: B_d with C_d."""
    representation: float
    """Change by the last representation with the old head: B_T with C_d."""
    classifier: float
    """Change by the last head on the old representation: B_d with C_T."""
    both: float
    """Change that the run measured: B_T with C_T."""

    @property
    def interaction(self) -> float:
        """Part of `both` that is not the sum of the two single changes."""
        return self.both - self.representation - self.classifier


def effects(composed: ArrayLike) -> list[Effects]:
    """Effects for every domain but the last, from A `[T, T, D]` with D ≥ T."""
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
    """Means over the domains; None if there is no old domain."""
    if not found:
        return None
    names = ("representation", "classifier", "both", "interaction")
    return {name: float(np.mean([getattr(each, name) for each in found])) for name in names}
