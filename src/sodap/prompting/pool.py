"""The prompt pool: key-value rows that are trained, then frozen for ever, as domains arrive."""

from typing import Literal

import torch
from torch import Tensor, nn

Merge = Literal["paper", "rescale"]

UNUSED = -1


class PromptPool(nn.Module):
    """``P_K, P_V`` of a fixed capacity, partitioned into frozen F, active A and unused rows.

    ``copies`` is 1 for a pool that all layers share, or the depth for one per layer; the
    partition is common to all copies. One buffer tells it: the ``generation`` in which a row was
    first trained. The latest generation is A, earlier ones are F.

    F lives in buffers and A in parameters. An index set alone would not freeze anything: weight
    decay and momentum move rows of a parameter that receive no gradient.

    ``merge`` says how A joins F. ``"paper"`` puts all frozen rows into one routed set at full
    scale, which changes the prompts of every image. ``"rescale"`` keeps the function: a former
    A stays its own set, with values stored times ``residual`` if that was its scale.
    """

    generation: Tensor  # [capacity]
    frozen_keys: Tensor  # [copies, capacity, width]
    frozen_values: Tensor

    def __init__(
        self,
        width: int,
        *,
        size: int = 60,
        capacity: int = 256,
        copies: int = 1,
        merge: Merge = "paper",
        residual: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= size <= capacity:
            raise ValueError(f"a pool of capacity {capacity} cannot start with {size} prompts")
        self.merge = merge
        self.residual = residual
        shape = (copies, capacity, width)
        self.trained_keys = nn.Parameter(torch.zeros(shape))
        self.trained_values = nn.Parameter(torch.zeros(shape))
        self.register_buffer("frozen_keys", torch.zeros(shape))
        self.register_buffer("frozen_values", torch.zeros(shape))
        self.register_buffer("generation", torch.full((capacity,), UNUSED))
        self._activate(size, generator)

    @property
    def keys(self) -> Tensor:
        """``[copies, capacity, width]``; only active rows pass a gradient on."""
        return torch.where(self.frozen.unsqueeze(-1), self.frozen_keys, self.trained_keys)

    @property
    def values(self) -> Tensor:
        """``[copies, capacity, width]``; only active rows pass a gradient on."""
        return torch.where(self.frozen.unsqueeze(-1), self.frozen_values, self.trained_values)

    @property
    def frozen(self) -> Tensor:
        """F as a mask ``[capacity]``."""
        return (self.generation != UNUSED) & ~self.active

    @property
    def active(self) -> Tensor:
        """A as a mask ``[capacity]``."""
        # Asked of the buffer, not of a count: a recorded step outlives the stage switch.
        return self.generation == self.generation.max()

    @property
    def sets(self) -> Tensor:
        """The set that a row is routed in, ``[capacity]``; the highest is A, and -1 is none."""
        if self.merge == "rescale":
            return self.generation
        return torch.where(self.generation == UNUSED, UNUSED, self.active.long())

    @property
    def frozen_count(self) -> int:
        return int(self.frozen.sum())

    @property
    def active_count(self) -> int:
        return int(self.active.sum())

    @property
    def unused_count(self) -> int:
        return int((self.generation == UNUSED).sum())

    @torch.no_grad()
    def expand(self, count: int, generator: torch.Generator | None = None) -> int:
        """Freeze A and activate up to ``count`` new rows; the number that found room.

        With no room left nothing changes: A goes on being trained.
        """
        if count < 0:
            raise ValueError(f"a pool cannot grow by {count} prompts")
        count = min(count, self.unused_count)
        if count == 0:
            return 0
        active = self.active
        # The first generation was never a residual: it is the base and keeps its scale.
        was_residual = bool(self.generation.max() > 0)
        scale = self.residual if self.merge == "rescale" and was_residual else 1.0
        self.frozen_keys[:, active] = self.trained_keys[:, active]
        self.frozen_values[:, active] = self.trained_values[:, active] * scale
        self._activate(count, generator)
        return count

    @torch.no_grad()
    def _activate(self, count: int, generator: torch.Generator | None) -> None:
        """Rows are taken in order, so the unused ones are always the last."""
        copies, capacity, width = self.trained_keys.shape
        first = capacity - self.unused_count
        rows = slice(first, first + count)
        for trained in (self.trained_keys, self.trained_values):
            device = "cpu" if generator is None else generator.device
            drawn = torch.randn(copies, count, width, generator=generator, device=device)
            trained[:, rows] = 0.02 * drawn.to(trained)
        self.generation[rows] = self.generation.max() + 1
