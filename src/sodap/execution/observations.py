"""Passes over a split outside training, with CUDA graphs where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
from torch import Tensor

from sodap.execution.cuda_graphs import GraphedCallable, pad_rows
from sodap.methods.base import Observations, Result


class GraphedObservations(Observations):
    """Observations whose passes are captured as a CUDA graph if `device` is a GPU."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device) -> None:
        super().__init__(batches)
        self.device = device

    def map(self, function: Callable[[Tensor], Result]) -> Iterator[tuple[Result, Tensor]]:
        graphed = GraphedCallable(function, self.device)
        full = 0  # images in a full batch; a smaller one is padded to share its graph
        for images, labels in self:
            full = max(full, len(images)) if graphed.active else 0
            with torch.no_grad():
                result = graphed(pad_rows(images, full))
            yield _first_rows(result, len(labels), copy=graphed.active), labels


def _first_rows(result: Result, count: int, *, copy: bool) -> Result:
    """Drop the padding; `copy` saves the rows from the next replay, which overwrites them."""
    if isinstance(result, Tensor):
        rows = result[:count]
        return cast(Result, rows.clone() if copy else rows)
    return cast(Result, tuple(_first_rows(each, count, copy=copy) for each in result))
