"""One seed, many independent generators, each with a name.

Every draw of a run comes from a generator made for its purpose, stage and epoch. A resumed run
makes the same generators anew, so there is no random state to save and none to lose.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Randomness:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def number(self, purpose: str, *where: int) -> int:
        """A 63-bit number that depends on the seed, the purpose and the place, and nothing else."""
        key = "/".join(map(str, (self.seed, purpose, *where)))
        # A purpose may be the name of a file, and the bytes of such names need not be UTF-8.
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def generator(
        self, purpose: str, *where: int, device: torch.device | str = "cpu"
    ) -> torch.Generator:
        """For example `generator("order", stage, epoch)`."""
        import torch  # slow to import, and not needed for numbers

        return torch.Generator(device).manual_seed(self.number(purpose, *where))
