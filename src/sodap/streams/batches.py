"""Batches of a split, moved to the device and made ready there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sodap.streams.stream import Split


class Batches:
    """Iterate over `(images, labels)`; as often as wanted, in the same order each time.

    `prepare` turns a uint8 batch `[B, 3, H, W]` on the device into what the model takes.
    """

    def __init__(
        self,
        split: Split,
        size: int,
        device: torch.device,
        prepare: Callable[[Tensor], Tensor],
        order: torch.Generator | None = None,
    ) -> None:
        self.split = split
        self.size = size
        self.device = device
        self.prepare = prepare
        self.order = None if order is None else torch.randperm(len(split), generator=order)

    def __len__(self) -> int:
        return -(-len(self.split) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.split), self.size):
            chosen: Tensor | slice = slice(start, start + self.size)
            if self.order is not None:
                chosen = self.order[start : start + self.size]
            images = self.split.images[chosen].to(self.device, non_blocking=True)
            labels = self.split.labels[chosen].to(self.device, non_blocking=True)
            yield self.prepare(images), labels
