"""Passes over a domain outside training, with CUDA graphs where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
from torch import Tensor

from sodap.methods.base import Observations, Result
from sodap.recording import Recorded, filled


class GraphedObservations(Observations):
    """Observations whose passes are captured as a CUDA graph if `device` is a GPU."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device) -> None:
        super().__init__(batches)
        self.device = device

    def map(self, function: Callable[[Tensor], Result]) -> Iterator[tuple[Result, Tensor]]:
        graphed = Recorded(function, self.device)
        full = 0  # images of a full batch; the last one is padded to it, so that one graph serves
        for images, labels in self:
            full = max(full, len(images)) if graphed.records else 0
            with torch.no_grad():
                result = graphed(filled(images, full))
            yield _first_rows(result, len(labels), copy=graphed.records), labels


def _first_rows(result: Result, count: int, *, copy: bool) -> Result:
    """Drop padding; `copy` detaches the rows from buffers that the next replay overwrites."""
    if isinstance(result, Tensor):
        rows = result[:count]
        return cast(Result, rows.clone() if copy else rows)
    return cast(Result, tuple(_first_rows(each, count, copy=copy) for each in result))
