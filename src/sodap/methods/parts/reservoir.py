"""A fixed number of images from a stream of unknown length, each as likely to be kept."""

from __future__ import annotations

import torch
from torch import Tensor

from sodap.preserving.exact import ExactModule


class Reservoir(ExactModule):
    """Vitter's reservoir: the n-th item enters with probability M / n and replaces any other.

    After n items every one of them is kept with probability M / n, so that no part of the stream
    is favoured. The buffers never change their shape; `seen` tells how much of them is filled.
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
        """How many items are kept; asks the device."""
        return min(int(self.seen), len(self.labels))

    @torch.no_grad()
    def add(self, images: Tensor, labels: Tensor, logits: Tensor, draws: Tensor) -> None:
        """Pass a batch by the reservoir; `draws` `[B]` in [0, 1) decide who enters and where."""
        size, seen = len(self.labels), int(self.seen)
        numbers = torch.arange(seen + 1, seen + len(labels) + 1, dtype=torch.float64)
        slots = (draws.cpu().double() * numbers).long()  # one of n places; the first M are kept
        slots = torch.where(numbers <= size, numbers.long() - 1, slots)
        # In the order of arrival: of two items for one place, the later stays.
        last = {slot: item for item, slot in enumerate(slots.tolist()) if slot < size}
        places, chosen = list(last.keys()), list(last.values())
        for kept, new in (
            (self.images, images),
            (self.labels, labels),
            (self.logits, logits),
        ):
            kept[places] = new[chosen].to(kept.dtype)
        self.seen += len(labels)
