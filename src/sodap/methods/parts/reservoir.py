"""A random sample of fixed size from a stream of images of unknown length."""

from __future__ import annotations

import torch
from torch import Tensor

from sodap.preserving.exact import ExactModule


class Reservoir(ExactModule):
    """Reservoir sampling (Vitter's algorithm R) of images with their labels and logits.

    Item n replaces a random one of the M kept items with probability M / n, so that after n items
    each of them is kept with the same probability M / n. Buffers have a fixed shape; `seen` counts
    the items so far.
    """

    images: Tensor  # uint8 [M, 3, S, S]
    labels: Tensor  # [M]
    logits: Tensor  # [M, C]
    seen: Tensor  # []

    def __init__(self, size: int, image_size: int, classes: int) -> None:
        super().__init__()
        pixels = torch.zeros(size, 3, image_size, image_size, dtype=torch.uint8)
        self.register_buffer("images", pixels)
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("logits", torch.zeros(size, classes))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        """Number of kept items; synchronises with the device."""
        return min(int(self.seen), len(self.labels))

    @torch.no_grad()
    def add(self, images: Tensor, labels: Tensor, logits: Tensor, draws: Tensor) -> None:
        """Offer a batch; uniform `draws` `[B]` in [0, 1) decide which items enter, and where."""
        size, seen = len(self.labels), int(self.seen)
        numbers = torch.arange(seen + 1, seen + len(labels) + 1, dtype=torch.float64)
        slots = (draws.cpu().double() * numbers).long()  # slots from M on mean: not kept
        slots = torch.where(numbers <= size, numbers.long() - 1, slots)
        # If two items of the batch draw the same slot, the later one stays.
        last = {slot: item for item, slot in enumerate(slots.tolist()) if slot < size}
        slots_used, items = list(last.keys()), list(last.values())
        for kept, new in ((self.images, images), (self.labels, labels), (self.logits, logits)):
            kept[slots_used] = new[items].to(kept.dtype)
        self.seen += len(labels)
