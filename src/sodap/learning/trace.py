"""Every training step in numbers: its losses, and the weights that were learned for them.

A step on a GPU never waits for the host. So its numbers stay on the device, in room that is taken
once an epoch, and are fetched together when the epoch is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

LOSS, WEIGHT = "loss.", "weight."
"""How the columns of a trace begin in a file."""


def _no_steps() -> Tensor:
    return torch.zeros(0, dtype=torch.int32)


@dataclass(frozen=True)
class Trace:
    """Steps of one stage, in their order."""

    epoch: Tensor = field(default_factory=_no_steps)
    """`[S]`: the epoch that a step belongs to, from 1."""
    images: Tensor = field(default_factory=_no_steps)
    """`[S]`: the size of its batch."""
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    """`[S]` each; NaN where a step had no such loss."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """`[S]` each: the weight of a loss as the step left it; none where weights are not learned."""

    def __len__(self) -> int:
        return len(self.epoch)

    def means(self) -> dict[str, float]:
        """Of each loss, over the images of the steps that had it."""
        found = {}
        for name, values in self.losses.items():
            there = ~values.isnan()
            sizes = self.images[there].double()
            found[name] = float((values[there].double() * sizes).sum() / sizes.sum())
        return found

    def of(self, *epochs: int) -> Trace:
        """The steps of some epochs."""
        chosen = torch.isin(self.epoch, torch.tensor(epochs, dtype=torch.int32))
        return Trace.from_tensors({name: value[chosen] for name, value in self.tensors().items()})

    def then(self, later: Trace) -> Trace:
        """Both, one after the other."""
        ours, theirs = self.tensors(), later.tensors()
        return Trace.from_tensors(
            {
                name: torch.cat([_column(ours, name, len(self)), _column(theirs, name, len(later))])
                for name in ours | theirs
            }
        )

    def tensors(self) -> dict[str, Tensor]:
        """The columns as a file holds them."""
        return {
            "epoch": self.epoch,
            "images": self.images,
            **{LOSS + name: values for name, values in self.losses.items()},
            **{WEIGHT + name: values for name, values in self.weights.items()},
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Trace:
        """The inverse of `tensors`."""
        return cls(
            tensors["epoch"],
            tensors["images"],
            {k.removeprefix(LOSS): v for k, v in tensors.items() if k.startswith(LOSS)},
            {k.removeprefix(WEIGHT): v for k, v in tensors.items() if k.startswith(WEIGHT)},
        )


def _column(tensors: Mapping[str, Tensor], name: str, steps: int) -> Tensor:
    return tensors[name] if name in tensors else torch.full((steps,), torch.nan)


class TraceBuffer:
    """The steps of the epoch under way, on the device."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps, self.device = steps, device
        self.images: list[int] = []
        self.columns: list[tuple[str, ...]] = []
        """What each step told: a method may have more losses from some step on."""
        self.tables: dict[tuple[str, ...], Tensor] = {}
        """For each set of columns `[steps, columns]`."""

    @torch.no_grad()
    def add(self, images: int, losses: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Copy the numbers of a step: a recorded one gives the same tensors at every replay."""
        columns = (*(LOSS + name for name in losses), *(WEIGHT + name for name in weights))
        if columns not in self.tables:
            self.tables[columns] = torch.empty(self.steps, len(columns), device=self.device)
        row = self.tables[columns][len(self.images)]
        values = (*losses.values(), *weights.values())
        torch.stack([value.reshape(()) for value in values], out=row)
        self.images.append(images)
        self.columns.append(columns)

    def fetch(self, epoch: int) -> Trace:
        """All steps so far; this waits for the device."""
        count = len(self.images)
        found: dict[str, Tensor] = {
            "epoch": torch.full((count,), epoch, dtype=torch.int32),
            "images": torch.tensor(self.images, dtype=torch.int32),
        }
        for columns, table in self.tables.items():
            there = torch.tensor([each == columns for each in self.columns])
            for name, values in zip(columns, table[:count].cpu().unbind(1), strict=True):
                column = found.setdefault(name, torch.full((count,), torch.nan))
                column[there] = values[there]
        return Trace.from_tensors(found)

    def broken(self, trace: Trace) -> list[str]:
        """Losses that were no finite number in a step that had them."""
        return [
            name
            for name, values in trace.losses.items()
            if int(values.isfinite().sum()) < sum(LOSS + name in each for each in self.columns)
        ]
