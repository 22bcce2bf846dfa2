"""Prompt usage of the last domain, kept for comparison with the next one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sodap.drift.window import UsageWindow
from sodap.freezing import resize_on_load


class UsageReference(nn.Module):
    """Buffers for the window at the end of a stage, saved with the model for the next stage.

    They hold entropies `[L, W-1]` and usage sets `[L, W-1, capacity]`, so that no old image is
    needed to compare a new domain with the old one. Without a capacity the sets are as long as the
    pool was.
    """

    entropies: Tensor
    sets: Tensor
    filled: Tensor

    def __init__(self, layers: int, capacity: int | None, size: int) -> None:
        super().__init__()
        self.limited = capacity is not None
        self.register_buffer("entropies", torch.zeros(layers, size, dtype=torch.float64))
        self.register_buffer("sets", torch.zeros(layers, size, capacity or 0, dtype=torch.bool))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        if not self.limited:
            resize_on_load(self, "sets", dim=2)

    def keep(self, window: UsageWindow) -> None:
        """Store a window over at most `capacity` prompts, replacing the previous one."""
        self.entropies.copy_(torch.from_numpy(window.entropies))
        if not self.limited:
            self.sets = self.sets.new_zeros(window.sets.shape)
        self.sets.zero_()
        self.sets[:, :, : window.prompts].copy_(torch.from_numpy(window.sets))
        self.filled.fill_(window.filled)

    def window(self, prompts: int) -> UsageWindow:
        """Return the stored window, over the first `prompts` prompts."""
        return UsageWindow.from_arrays(
            {
                "entropies": self.entropies.cpu().numpy(),
                "sets": self.sets[:, :, :prompts].cpu().numpy(),
                "filled": self.filled.cpu().numpy(),
            }
        )
