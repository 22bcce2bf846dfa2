"""One training step: random views, losses, gradients, the optimiser's move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import AdamW, Optimizer

from sodap.errors import SodapError
from sodap.learning.fusing import fused
from sodap.learning.precision import tensor_cores
from sodap.methods import Batch, Method
from sodap.recording import CannotRecordError, Recorded
from sodap.streams import Augmentation


def make_optimizer(groups: list[dict[str, Any]], device: torch.device) -> AdamW:
    """AdamW; on a GPU in one kernel, with all that a recorded step may change in tensors there."""
    if device.type != "cuda":
        return AdamW(groups)
    return AdamW(groups, fused=True, capturable=True)


def set_learning_rates(optimizer: Optimizer, rates: list[float], device: torch.device) -> None:
    """A recorded step reads its learning rate from the device: the number changes, not its home."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if device.type != "cuda":
            group["lr"] = rate
        elif isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = torch.tensor(rate, device=device)


@dataclass(frozen=True)
class Outcome:
    """What a step gave, as scalars on the device; those of a recorded step change with the next."""

    losses: dict[str, Tensor]
    weights: dict[str, Tensor]
    """The learned weight of each loss after the step; empty where none are learned."""


@dataclass(frozen=True)
class PlainStep:
    """One step after the other, launched anew every time."""

    method: Method
    optimizer: Optimizer
    fabric: Fabric
    augmentation: Augmentation
    views: torch.Generator
    draws: torch.Generator

    def __call__(self, images: Tensor, labels: Tensor) -> Outcome:
        """Learn from one batch of uint8 images `[B, 3, H, W]`."""
        method, fabric = self.method, self.fabric
        with tensor_cores(fabric, method):
            with fabric.autocast():
                losses = method.losses(self._batch(images, labels))
                total = method.total(losses)
            fabric.backward(total)
        method.before_step()
        self.optimizer.step()
        method.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        return Outcome(
            {name: loss.detach() for name, loss in losses.items()},
            method.loss_weights(),
        )

    def _batch(self, images: Tensor, labels: Tensor) -> Batch:
        augment, prepare, draws = self.augmentation, self.method.backbone.prepare, self.draws
        return Batch(
            images=augment(images, self.views, prepare),
            labels=labels,
            generator=draws,
            augment=lambda stored: augment(stored, draws, prepare),
        )


class Step:
    """The step of one stage; call it with a batch of uint8 images `[B, 3, H, W]` and labels.

    On a GPU it is recorded, once for full batches and once for the last one of an epoch, which is
    not compiled.
    """

    def __init__(
        self,
        method: Method,
        optimizer: Optimizer,
        fabric: Fabric,
        batch_size: int,
        augmentation: Augmentation,
        *,
        record: bool = True,
    ) -> None:
        self.method = method
        self.fabric = fabric
        self.batch_size = batch_size
        self.views = torch.Generator(fabric.device)
        self.draws = torch.Generator(fabric.device)
        optimizer.zero_grad(set_to_none=True)  # what a step that was broken off has left
        self.plain = PlainStep(method, optimizer, fabric, augmentation, self.views, self.draws)
        self.recorded = Recorded(
            self.plain,
            fabric.device,
            generators=[self.views, self.draws],
            wanted=record and method.graph_safe,
            strict=True,
        )

    def begin_epoch(self, epoch: int) -> None:
        """Every random number of an epoch follows from the run's seed, the stage and the epoch."""
        randomness, where = self.method.randomness, (self.method.stage, epoch)
        self.views.manual_seed(randomness.number("augment", *where))
        self.draws.manual_seed(randomness.number("replay", *where))

    def __call__(self, images: Tensor, labels: Tensor) -> Outcome:
        """Learn from one batch."""
        try:
            with fused(len(images) == self.batch_size):
                return self.recorded(images, labels)
        except CannotRecordError as error:
            raise SodapError(
                f"the training step of {self.method.name} cannot be recorded as a CUDA graph: it "
                f"waits for the host ({error}); set graph_safe = False in its class"
            ) from error
