"""Batches of a split, moved to the device and made ready there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

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
        collected = (
            self._ahead() if self.device.type == "cuda" else map(self._collect, self._starts())
        )
        for images, labels in collected:
            images = images.to(self.device, non_blocking=True)
            yield self.prepare(images), labels.to(self.device, non_blocking=True)

    def _starts(self) -> range:
        return range(0, len(self.split), self.size)

    def _collect(self, start: int) -> tuple[Tensor, Tensor]:
        """One batch from memory or from a mapped file."""
        rows = slice(start, start + self.size)
        if self.order is None:
            return self.split.images[rows], self.split.labels[rows]
        chosen = self.order[rows]
        # Whole images lie in one piece: copying them one by one beats torch's general gather.
        images = torch.stack([self.split.images[row] for row in chosen.tolist()])
        return images, self.split.labels[chosen]

    def _ahead(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Collect the next batch, where a GPU can copy from, while this one is computed."""

        def collect(start: int) -> tuple[Tensor, Tensor]:
            images, labels = self._collect(start)
            return images.pin_memory(), labels.pin_memory()

        with ThreadPoolExecutor(1) as worker:
            waiting = None
            for start in self._starts():
                ahead = worker.submit(collect, start)
                if waiting is not None:
                    yield waiting.result()
                waiting = ahead
            if waiting is not None:
                yield waiting.result()
