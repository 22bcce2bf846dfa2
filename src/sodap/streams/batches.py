"""Batches of a split, moved to the device and prepared there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sodap.streams.stream import Split

SHARE = 0.25
"""Of a GPU's free memory, how much the images of a stage may take to live there."""


def to_gpu_if_fits(
    splits: Sequence[Split], device: torch.device, share: float = SHARE
) -> list[Split]:
    """Splits that are read again and again, in the GPU's own memory, if they fit well.

    That is, into `share` of what is free. Then no batch ever crosses the bus. Where they do not
    fit, batches are sent ahead of their use.
    """
    if device.type != "cuda":
        return list(splits)
    free, _ = torch.cuda.mem_get_info(device)
    if sum(split.images.nbytes for split in splits) > share * free:
        return list(splits)
    return [Split(split.images.to(device), split.labels.to(device)) for split in splits]


class BatchLoader:
    """Iterate over `(images, labels)`; as often as wanted, in the same order each time.

    `prepare` turns a uint8 batch `[B, 3, H, W]` on the device into what the model takes; without
    it, the batch stays as it is.
    """

    def __init__(
        self,
        split: Split,
        size: int,
        device: torch.device,
        prepare: Callable[[Tensor], Tensor] | None = None,
        order: torch.Generator | None = None,
    ) -> None:
        self.split = split
        self.size = size
        self.device = device
        self.prepare = prepare
        self.order = None if order is None else torch.randperm(len(split), generator=order)
        self.local = split.images.is_cuda
        if self.local and self.order is not None:
            self.order = self.order.to(split.images.device)

    def __len__(self) -> int:
        return -(-len(self.split) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        sent = self.device.type == "cuda" and not self.local
        collected = self._ahead() if sent else map(self._collect, self._starts())
        for images, labels in collected:
            images = images.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
            yield images if self.prepare is None else self.prepare(images), labels

    def _starts(self) -> range:
        return range(0, len(self.split), self.size)

    def _collect(self, start: int) -> tuple[Tensor, Tensor]:
        """One batch from memory or from a mapped file."""
        rows = slice(start, start + self.size)
        if self.order is None:
            return self.split.images[rows], self.split.labels[rows]
        chosen = self.order[rows]
        if self.local:
            return self.split.images[chosen], self.split.labels[chosen]
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
