"""Modules whose statistics keep their precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn


class ExactModule(nn.Module):
    """Module whose buffers move between devices but keep their dtype.

    `model.half()` converts every floating-point buffer; float64 sums must not become float16.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def exact(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(exact, recurse)  # type: ignore[no-untyped-call]
        return self
