"""Batches of a split, moved to the device and prepared there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sodap.streams.stream import Split

GPU_SHARE = 0.25
"""Largest share of the free GPU memory for the images of a stage."""


def to_gpu_if_fits(
    splits: Sequence[Split], device: torch.device, share: float = GPU_SHARE
) -> list[Split]:
    """Copy splits to GPU memory if they fit into `share` of what is free, else return them as is.

    For splits that are read many times: no batch has to be transferred any more. `BatchLoader`
    prefetches the batches of splits that do not fit.
    """
    if device.type != "cuda":
        return list(splits)
    free, _ = torch.cuda.mem_get_info(device)
    if sum(split.images.nbytes for split in splits) > share * free:
        return list(splits)
    return [Split(split.images.to(device), split.labels.to(device)) for split in splits]


class BatchLoader:
    """Iterable over batches `(images, labels)` of a split, in the same order every time.

    Args:
        split: The images and labels.
        size: Images per batch; the last batch may be smaller.
        device: Where the batches are needed.
        prepare: Applied to each uint8 batch `[B, 3, H, W]` on the device.
        order: Generator of a random order; default: the order of the split.
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
        self.on_gpu = split.images.is_cuda
        if self.on_gpu and self.order is not None:
            self.order = self.order.to(split.images.device)

    def __len__(self) -> int:
        return -(-len(self.split) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        transfer = self.device.type == "cuda" and not self.on_gpu
        batches = self._prefetch() if transfer else map(self._collect, self._starts())
        for images, labels in batches:
            images = images.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
            yield images if self.prepare is None else self.prepare(images), labels

    def _starts(self) -> range:
        return range(0, len(self.split), self.size)

    def _collect(self, start: int) -> tuple[Tensor, Tensor]:
        """One batch, from memory or from a mapped file."""
        rows = slice(start, start + self.size)
        if self.order is None:
            return self.split.images[rows], self.split.labels[rows]
        chosen = self.order[rows]
        if self.on_gpu:
            return self.split.images[chosen], self.split.labels[chosen]
        # Each image is contiguous: copying them one by one is faster than torch's gather.
        images = torch.stack([self.split.images[row] for row in chosen.tolist()])
        return images, self.split.labels[chosen]

    def _prefetch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Collect the next batch in pinned memory while the current one is computed."""

        def collect(start: int) -> tuple[Tensor, Tensor]:
            images, labels = self._collect(start)
            return images.pin_memory(), labels.pin_memory()

        with ThreadPoolExecutor(1) as worker:
            waiting = None
            for start in self._starts():
                following = worker.submit(collect, start)
                if waiting is not None:
                    yield waiting.result()
                waiting = following
            if waiting is not None:
                yield waiting.result()
