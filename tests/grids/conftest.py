"""A stream and methods with which a grid takes seconds, and which fail in known ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import sodap.grids.task as task_module
import sodap.methods.registry as method_registry
import sodap.streams.registry as stream_registry
from sodap.grids import GridCallback, Task
from sodap.grids.search import RATES, Setting
from sodap.methods.base import Batch, Observations
from sodap.methods.sequential import Sequential
from sodap.runs import RunRecord
from tests.conftest import TINY, make_stream

QUICK = [*TINY, "epochs=1", "batch_size=16"]


class Troubled(Sequential):
    """A method that fails in the way that `trouble` says."""

    name = "troubled"
    trouble: ClassVar[str] = ""

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        self.decay = weight_decay
        return super().parameter_groups(lr, weight_decay)

    def begin_stage(self, number: int, batches: Observations) -> Any:
        if self.trouble == "bug in seed 0" and self.randomness.seed == 0:
            raise ValueError("bad luck")
        return super().begin_stage(number, batches)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        losses = super().losses(batch)
        if self.trouble == "decay 0.1 diverges" and self.decay == 0.1:
            losses = {name: loss * torch.nan for name, loss in losses.items()}
        if self.trouble == "no memory for decay 0" and self.decay == 0.0:
            raise MemoryError("too much")
        return losses


class Rising(Sequential):
    """A method whose accuracy grows with the learning rate."""

    name = "rising"
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({"lr": 1e-3}, {"lr": 1e-2})

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        self.share = RATES.index(lr) / len(RATES)
        return super().parameter_groups(lr, weight_decay)

    def forward(self, images: Tensor) -> Tensor:
        """Know the place of the stripe, but tell it only for a share of the images."""
        right = images.mean((1, 2))[:, :30].reshape(-1, 3, 10).sum(2)  # [B, 3]
        chance = (images.flatten(1).sum(1).abs() * 1000) % 1
        known = (chance < self.share).unsqueeze(1)
        return torch.where(known, right, -right) + 0 * super().forward(images)


@pytest.fixture
def quick_methods_and_stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The search adds no candidates for keys other than the learning rate.
    few = ({"weight_decay": 0.0}, {"weight_decay": 0.1})
    monkeypatch.setattr(Sequential, "candidates", few)
    for method in (Troubled, Rising):
        monkeypatch.setitem(method_registry._METHODS, method.name, method)
    monkeypatch.setitem(stream_registry._FACTORIES, "stripes", make_stream)
    task_module._cached.cache_clear()
    yield
    Troubled.trouble = ""


class Watcher(GridCallback):
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.total = 0
        self.done: list[str] = []
        self.failed: list[str] = []

    def planned(self, tasks: int, finished: int) -> None:
        self.total = tasks

    def search_extended(self, setting: Setting) -> None:
        self.total += 1

    def task_done(self, task: Task, record: RunRecord | None) -> None:
        self.done.append(task.label)

    def task_failed(self, task: Task, error: str) -> None:
        self.failed.append(task.label)


def record_path(out: Path, method: str, seed: int) -> Path:
    return out / "stripes" / method / f"s{seed}" / "record.json"
