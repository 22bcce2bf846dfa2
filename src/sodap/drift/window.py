"""Sliding window over the usage of recent batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sodap.errors import SodapError


class UsageWindow:
    """Entropy and usage set of the last `size` batches, per layer; the newest entry comes last."""

    def __init__(self, layers: int, prompts: int, size: int) -> None:
        self.entropies = np.zeros((layers, size), dtype=np.float64)
        self.sets = np.zeros((layers, size, prompts), dtype=np.bool_)
        self.filled = 0

    @property
    def prompts(self) -> int:
        return self.sets.shape[2]

    @property
    def past_entropies(self) -> NDArray[np.float64]:
        """`[L, filled]`, oldest first."""
        return self.entropies[:, self.entropies.shape[1] - self.filled :]

    @property
    def past_sets(self) -> NDArray[np.bool_]:
        """`[L, filled, N]`, oldest first."""
        return self.sets[:, self.sets.shape[1] - self.filled :]

    def add(self, entropy: NDArray[np.float64], used: NDArray[np.bool_]) -> None:
        """Append an entry, entropy `[L]` and usage set `[L, N]`; the oldest one drops out."""
        self.entropies = np.roll(self.entropies, -1, axis=1)
        self.entropies[:, -1] = entropy
        self.sets = np.roll(self.sets, -1, axis=1)
        self.sets[:, -1] = used
        self.filled = min(self.filled + 1, self.entropies.shape[1])

    def widen(self, prompts: int) -> None:
        """Extend all entries to a pool that has grown; they do not use the new prompts."""
        grown = prompts - self.prompts
        if grown < 0:
            raise SodapError(f"a window over {self.prompts} prompts cannot shrink to {prompts}")
        self.sets = np.pad(self.sets, ((0, 0), (0, 0), (0, grown)))

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the state as arrays; their shapes do not depend on how full the window is."""
        return {
            "entropies": self.entropies.copy(),
            "sets": self.sets.copy(),
            "filled": np.array(self.filled, dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """Build a window from the arrays of `to_arrays`."""
        entropies, sets = arrays["entropies"], arrays["sets"]
        filled = int(arrays["filled"])
        if entropies.shape != sets.shape[:2] or not 0 <= filled <= entropies.shape[1]:
            raise SodapError(
                f"not the state of a usage window: entropies {list(entropies.shape)}, "
                f"sets {list(sets.shape)}, {filled} filled"
            )
        layers, size, prompts = sets.shape
        window = cls(layers, prompts, size)
        window.entropies[:] = entropies
        window.sets[:] = sets
        window.filled = filled
        return window
