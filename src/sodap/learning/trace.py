"""Losses and loss weights of every training step.

A step on a GPU never waits for the host. Its numbers stay on the device, in a buffer that is
allocated once per epoch, and are fetched together when the epoch is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

LOSS, WEIGHT = "loss.", "weight."
"""Prefixes of the columns in a file."""


def _no_steps() -> Tensor:
    return torch.zeros(0, dtype=torch.int32)


@dataclass(frozen=True)
class Trace:
    """Training steps of one stage, in order."""

    epoch: Tensor = field(default_factory=_no_steps)
    """Epoch of each step `[S]`, counted from 1."""
    images: Tensor = field(default_factory=_no_steps)
    """Batch size of each step `[S]`."""
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    """Losses `[S]` by name; NaN where a step had no such loss."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights of the losses after each step `[S]` by name; empty if none are learned."""

    def __len__(self) -> int:
        return len(self.epoch)

    def means(self) -> dict[str, float]:
        """Mean of each loss over the images of the steps that had it."""
        found = {}
        for name, values in self.losses.items():
            present = ~values.isnan()
            sizes = self.images[present].double()
            found[name] = float((values[present].double() * sizes).sum() / sizes.sum())
        return found

    def select(self, *epochs: int) -> Trace:
        """Steps of the given epochs."""
        chosen = torch.isin(self.epoch, torch.tensor(epochs, dtype=torch.int32))
        return Trace.from_tensors({name: value[chosen] for name, value in self.tensors().items()})

    def concat(self, later: Trace) -> Trace:
        """Steps of this trace, followed by those of `later`."""
        ours, theirs = self.tensors(), later.tensors()
        return Trace.from_tensors(
            {
                name: torch.cat([_column(ours, name, len(self)), _column(theirs, name, len(later))])
                for name in ours | theirs
            }
        )

    def tensors(self) -> dict[str, Tensor]:
        """Columns by the names they have in a file."""
        return {
            "epoch": self.epoch,
            "images": self.images,
            **{LOSS + name: values for name, values in self.losses.items()},
            **{WEIGHT + name: values for name, values in self.weights.items()},
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Trace:
        """Inverse of `tensors`."""
        return cls(
            tensors["epoch"],
            tensors["images"],
            {k.removeprefix(LOSS): v for k, v in tensors.items() if k.startswith(LOSS)},
            {k.removeprefix(WEIGHT): v for k, v in tensors.items() if k.startswith(WEIGHT)},
        )


def _column(tensors: Mapping[str, Tensor], name: str, steps: int) -> Tensor:
    return tensors[name] if name in tensors else torch.full((steps,), torch.nan)


class TraceBuffer:
    """Steps of the current epoch, on the device."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps, self.device = steps, device
        self.images: list[int] = []
        self.columns: list[tuple[str, ...]] = []
        """Columns of each step; a method may return more losses from some step on."""
        self.tables: dict[tuple[str, ...], Tensor] = {}
        """Values `[steps, columns]` for each set of columns."""

    @torch.no_grad()
    def add(self, images: int, losses: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Copy the numbers of a step, because a captured step overwrites them at every replay."""
        columns = (*(LOSS + name for name in losses), *(WEIGHT + name for name in weights))
        if columns not in self.tables:
            self.tables[columns] = torch.empty(self.steps, len(columns), device=self.device)
        row = self.tables[columns][len(self.images)]
        values = (*losses.values(), *weights.values())
        torch.stack([value.reshape(()) for value in values], out=row)
        self.images.append(images)
        self.columns.append(columns)

    def fetch(self, epoch: int) -> Trace:
        """All steps so far; waits for the device."""
        count = len(self.images)
        found: dict[str, Tensor] = {
            "epoch": torch.full((count,), epoch, dtype=torch.int32),
            "images": torch.tensor(self.images, dtype=torch.int32),
        }
        for columns, table in self.tables.items():
            present = torch.tensor([each == columns for each in self.columns])
            for name, values in zip(columns, table[:count].cpu().unbind(1), strict=True):
                column = found.setdefault(name, torch.full((count,), torch.nan))
                column[present] = values[present]
        return Trace.from_tensors(found)

    def not_finite(self, trace: Trace) -> list[str]:
        """Names of losses that were NaN or infinite in a step that had them."""
        return [
            name
            for name, values in trace.losses.items()
            if int(values.isfinite().sum()) < sum(LOSS + name in each for each in self.columns)
        ]
