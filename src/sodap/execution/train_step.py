"""One training step: augmentation, losses, gradients, optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from sodap.errors import SodapError
from sodap.execution.cuda_graphs import CannotCaptureError, GraphedCallable
from sodap.execution.eager import compiled_only_if
from sodap.execution.runtime import Runtime
from sodap.methods.base import Batch, Method
from sodap.streams import Augmentation


@dataclass(frozen=True)
class StepResult:
    """Scalars on the device; those of a captured step are overwritten by the next one."""

    losses: dict[str, Tensor]
    weights: dict[str, Tensor]
    """Learned weight of each loss after the step; empty if none are learned."""


class TrainStep:
    """The training step of one stage, called with uint8 images `[B, 3, H, W]` and labels `[B]`.

    On a GPU it is captured as a CUDA graph, once for full batches of `batch_size` images and once
    for the last batch of an epoch, which is never compiled.

    Args:
        groups: parameter groups as `Method.parameter_groups` returns them.
        optimizer_state: state of the optimiser to continue from.
    """

    def __init__(
        self,
        method: Method,
        runtime: Runtime,
        groups: Sequence[dict[str, Any]],
        batch_size: int,
        augmentation: Augmentation | None = None,
        optimizer_state: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.runtime = runtime
        self.batch_size = batch_size
        self.rates = [float(group["lr"]) for group in groups]
        # On a GPU one kernel updates all parameters, and a graph can read what it needs there.
        on_gpu = runtime.device.type == "cuda"
        fused, momentum = on_gpu or None, method.sgd_momentum
        self.optimizer: Optimizer = (
            AdamW(groups, fused=fused, capturable=on_gpu)
            if momentum is None
            else SGD(groups, momentum=momentum, fused=fused)
        )
        if optimizer_state:
            self.optimizer.load_state_dict(dict(optimizer_state))
        self.optimizer.zero_grad(set_to_none=True)  # an interrupted step leaves gradients behind
        self.augment_generator = torch.Generator(runtime.device)
        self.step_generator = torch.Generator(runtime.device)
        eager = _EagerStep(
            method,
            runtime,
            self.optimizer,
            augmentation or Augmentation(),
            self.augment_generator,
            self.step_generator,
        )
        self.graphed = GraphedCallable(
            eager,
            runtime.device,
            generators=[self.augment_generator, self.step_generator],
            enabled=runtime.graphs(method),
            strict=True,
        )

    def begin_epoch(self, epoch: int, decay: float = 1.0) -> None:
        """Seed all random numbers of the epoch and scale the learning rates by `decay`."""
        randomness, stage = self.method.randomness, self.method.stage
        self.augment_generator.manual_seed(randomness.number("augment", stage, epoch))
        self.step_generator.manual_seed(randomness.number("replay", stage, epoch))
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            if self.runtime.device.type != "cuda":
                group["lr"] = rate * decay
            elif isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * decay)  # a graph reads it from this address
            else:
                group["lr"] = torch.tensor(rate * decay, device=self.runtime.device)

    def __call__(self, images: Tensor, labels: Tensor) -> StepResult:
        try:
            with compiled_only_if(len(images) == self.batch_size):
                return self.graphed(images, labels)
        except CannotCaptureError as error:
            raise SodapError(
                f"the training step of {self.method.name} cannot be captured as a CUDA graph: it "
                f"waits for the host ({error}); set graph_safe = False in its class"
            ) from error


@dataclass(frozen=True)
class _EagerStep:
    """The step itself; apart from `TrainStep`, so that no reference cycle holds a graph."""

    method: Method
    runtime: Runtime
    optimizer: Optimizer
    augmentation: Augmentation
    augment_generator: torch.Generator
    step_generator: torch.Generator

    def __call__(self, images: Tensor, labels: Tensor) -> StepResult:
        method, runtime = self.method, self.runtime
        with runtime.tf32(method):
            with runtime.autocast():
                losses = method.losses(self._batch(images, labels))
                total = method.total(losses)
            torch.autograd.backward(total)
        method.before_step()
        self.optimizer.step()
        method.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(
            {name: loss.detach() for name, loss in losses.items()}, method.loss_weights()
        )

    def _batch(self, images: Tensor, labels: Tensor) -> Batch:
        augment, prepare = self.augmentation, self.method.backbone.prepare
        generator = self.step_generator
        return Batch(
            images=augment(images, self.augment_generator, prepare),
            labels=labels,
            generator=generator,
            augment=lambda stored: augment(stored, generator, prepare),
        )
