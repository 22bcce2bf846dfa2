"""Independent random generators, each with a name, from one seed.

Every draw of a run comes from a generator made for its purpose, stage and epoch. A resumed run
makes the same generators again, so no random state has to be saved.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Randomness:
    """Source of all random numbers of a run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def number(self, purpose: str, *where: int) -> int:
        """A 63-bit number that depends only on the seed, the purpose and the place."""
        key = "/".join(map(str, (self.seed, purpose, *where)))
        # A purpose may be the name of a file, whose bytes need not be UTF-8.
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def generator(
        self, purpose: str, *where: int, device: torch.device | str = "cpu"
    ) -> torch.Generator:
        """A generator seeded with `number`, for example `generator("order", stage, epoch)`."""
        import torch  # slow to import, and not needed for numbers

        return torch.Generator(device).manual_seed(self.number(purpose, *where))
