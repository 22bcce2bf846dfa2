"""Sums that must not lose digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn


class ExactModule(nn.Module):
    """A module whose buffers follow to any device and keep their precision there.

    `model.half()` and the like reach every buffer; float64 statistics must not become float16.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def exact(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(exact, recurse)  # type: ignore[no-untyped-call]
        return self
