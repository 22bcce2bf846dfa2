"""The prompt pool: keys and values that are trained in one stage and frozen in the next."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sodap.freezing import freeze_rows, frozen_or_trained, resize_on_load
from sodap.prompting.options import Merge

UNUSED = -1


class PromptPool(nn.Module):
    """``P_K, P_V``: frozen rows F, then active rows A, then unused rows up to the capacity.

    With a ``capacity`` all rows exist from the start, so that growth changes no shape. Without one
    there are no unused rows, and growth makes longer tensors.

    ``copies`` is 1 for a pool that all layers share, or the depth for one per layer; all copies
    have the same partition. Rows that were added together form a generation; the latest one is A,
    the earlier ones are F.

    F lives in buffers and A in parameters. An index set alone would not freeze anything: weight
    decay and momentum move rows of a parameter even where the gradient is zero.

    ``merge`` is how A joins F. With ``"paper"`` all frozen rows form one routed set at full scale,
    which changes the prompts of every image. ``"rescale"`` preserves the outputs: each generation
    is routed by itself, and its values are stored times ``residual`` if that was its scale.
    """

    generation: Tensor  # [capacity], UNUSED or 0, 1, ...
    frozen_keys: Tensor  # [copies, capacity, width]
    frozen_values: Tensor

    def __init__(
        self,
        width: int,
        *,
        size: int = 60,
        capacity: int | None = 256,
        copies: int = 1,
        merge: Merge = "paper",
        residual: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= size <= (size if capacity is None else capacity):
            raise ValueError(f"a pool of capacity {capacity} cannot start with {size} prompts")
        self.limited = capacity is not None
        rows = size if capacity is None else capacity
        self.merge = merge
        self.residual = residual
        shape = (copies, rows, width)
        self.trained_keys = nn.Parameter(torch.zeros(shape))
        self.trained_values = nn.Parameter(torch.zeros(shape))
        self.register_buffer("frozen_keys", torch.zeros(shape))
        self.register_buffer("frozen_values", torch.zeros(shape))
        self.register_buffer("generation", torch.full((rows,), UNUSED))
        self.generations: tuple[int, ...] = ()
        """Rows of each generation, in the order of the rows; the last is A."""
        if not self.limited:
            resize_on_load(self, *self._prompts, dim=1)
            resize_on_load(self, "generation")
        self._activate(size, generator)

    _prompts = ("trained_keys", "trained_values", "frozen_keys", "frozen_values")

    @property
    def capacity(self) -> int:
        """Number of rows that there are, used or not."""
        return len(self.generation)

    @property
    def keys(self) -> Tensor:
        """``P_K [copies, capacity, width]``; only active rows pass on a gradient."""
        return frozen_or_trained(self.frozen, self.frozen_keys, self.trained_keys, dim=1)

    @property
    def values(self) -> Tensor:
        """``P_V [copies, capacity, width]``; only active rows pass on a gradient."""
        return frozen_or_trained(self.frozen, self.frozen_values, self.trained_values, dim=1)

    @property
    def frozen(self) -> Tensor:
        """F as a mask ``[capacity]``."""
        return (self.generation != UNUSED) & ~self.active

    @property
    def active(self) -> Tensor:
        """A as a mask ``[capacity]``."""
        return self.generation == self.generation.max()

    @property
    def size(self) -> int:
        """Number of prompts in use, ``|F| + |A|``."""
        return sum(self.generations)

    @property
    def frozen_count(self) -> int:
        return sum(self.generations[:-1])

    @property
    def active_count(self) -> int:
        return self.generations[-1]

    @property
    def unused_count(self) -> int | None:
        """Rows left to grow into; None without a limit."""
        return self.capacity - self.size if self.limited else None

    @torch.no_grad()
    def expand(self, count: int, generator: torch.Generator | None = None) -> int:
        """Freeze A, activate up to ``count`` new rows, and return how many there was room for.

        Without room nothing changes: A continues to be trained.
        """
        if count < 0:
            raise ValueError(f"a pool cannot grow by {count} prompts")
        if self.unused_count is not None:
            count = min(count, self.unused_count)
        if count == 0:
            return 0
        # The first generation was never a residual: it is the base and keeps its scale.
        was_residual = len(self.generations) > 1
        scale = self.residual if self.merge == "rescale" and was_residual else 1.0
        freeze_rows(self.active, self.frozen_keys, self.trained_keys, dim=1)
        freeze_rows(self.active, self.frozen_values, self.trained_values * scale, dim=1)
        if not self.limited:
            self._lengthen(count)
        self._activate(count, generator)
        return count

    @torch.no_grad()
    def start_keys(self, copy: int, directions: Tensor) -> None:
        """Point the keys of A in given directions ``[|A|, width]``, in one copy of the pool.

        Their length does not change the routing, only how fast training turns them: entries of
        about 0.5 turn slowly enough to stay near where they start.
        """
        rows = slice(self.frozen_count, self.size)
        self.trained_keys[copy, rows] = 0.5 * directions.shape[-1] ** 0.5 * directions

    def _lengthen(self, count: int) -> None:
        """Add unused rows; the parameters become new ones."""
        for name in self._prompts:
            longer = F.pad(getattr(self, name), (0, 0, 0, count))
            trained = name.startswith("trained")
            setattr(self, name, nn.Parameter(longer) if trained else longer)
        self.generation = F.pad(self.generation, (0, count), value=UNUSED)

    @torch.no_grad()
    def _activate(self, count: int, generator: torch.Generator | None) -> None:
        """Make the first ``count`` unused rows a new generation, drawn from N(0, 0.02)."""
        copies, _, width = self.trained_keys.shape
        rows = slice(self.size, self.size + count)
        for trained in (self.trained_keys, self.trained_values):
            device = "cpu" if generator is None else generator.device
            drawn = torch.randn(copies, count, width, generator=generator, device=device)
            trained[:, rows] = 0.02 * drawn.to(trained)
        self.generation[rows] = len(self.generations)
        self.generations += (count,)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        in_use = self.generation[self.generation != UNUSED]
        self.generations = tuple(in_use.bincount().tolist())
