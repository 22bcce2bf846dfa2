"""One training step: random views, losses, gradients, the optimiser's move.

A step on a GPU is more than a thousand small launches, and the processor cannot give them out as
fast as the GPU works them off. So the first full batches of a stage run plainly, then one step is
recorded as a CUDA graph, and from there on it is replayed in a single launch: the same kernels on
the same numbers, the generators included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import AdamW, Optimizer

from sodap.balancing import UncertaintyWeighting
from sodap.errors import SodapError
from sodap.learning.precision import tensor_cores
from sodap.methods import Method

WARM_UP = 3
"""Plain steps before one is recorded: libraries choose their kernels and memory in them."""


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


class Step:
    """The step of one stage; call it with a batch of uint8 images `[B, 3, H, W]` and labels."""

    def __init__(
        self,
        method: Method,
        optimizer: Optimizer,
        fabric: Fabric,
        batch_size: int,
        *,
        record: bool = True,
    ) -> None:
        self.method = method
        self.optimizer = optimizer
        self.fabric = fabric
        self.batch_size = batch_size
        self.balance = _balance(method)
        self.views = torch.Generator(fabric.device)
        self.draws = torch.Generator(fabric.device)
        on_gpu = fabric.device.type == "cuda"
        recorded = on_gpu and record and method.steps_alike
        self.stream = torch.cuda.Stream() if recorded else None  # type: ignore[no-untyped-call]
        self.plain_steps = 0
        self.recording: Recording | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Every random number of an epoch follows from the run's seed, the stage and the epoch."""
        randomness, where = self.method.randomness, (self.method.stage, epoch)
        self.views.manual_seed(randomness.number("augment", *where))
        self.draws.manual_seed(randomness.number("replay", *where))

    def __call__(self, images: Tensor, labels: Tensor) -> Outcome:
        """Learn from one batch."""
        if self.stream is None or len(images) != self.batch_size:
            return self.plain(images, labels)
        if self.recording is None and self.plain_steps >= WARM_UP:
            self.recording = Recording(self, images, labels, self.stream)
        if self.recording is not None:
            return self.recording.replay(images, labels)
        self.plain_steps += 1
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):  # where gradients will be recorded, too
            outcome = self.plain(images, labels)
        torch.cuda.current_stream().wait_stream(self.stream)
        return outcome

    def plain(self, images: Tensor, labels: Tensor) -> Outcome:
        method, fabric = self.method, self.fabric
        with tensor_cores(fabric, method):
            with fabric.autocast():
                losses = method.losses(method.view(images, self.views), labels, self.draws)
                total = method.total(losses)
            self.optimizer.zero_grad(set_to_none=True)
            fabric.backward(total)
        method.before_step()
        self.optimizer.step()
        method.after_step()
        return Outcome(
            {name: loss.detach() for name, loss in losses.items()},
            {} if self.balance is None else self.balance.weights(),
        )


def _balance(method: Method) -> UncertaintyWeighting | None:
    """What learns the weights of the losses, if the method goes by them in this stage.

    It is asked itself at every step, because `Method.weights` answers in numbers of the host.
    """
    names = method.weights().keys()
    for module in method.modules():
        if isinstance(module, UncertaintyWeighting) and names == set(module.names):
            return module
    return None


class Recording:
    """A step as a CUDA graph: it reads from and writes to the same places every time."""

    def __init__(
        self, step: Step, images: Tensor, labels: Tensor, stream: torch.cuda.Stream
    ) -> None:
        self.images, self.labels = images.clone(), labels.clone()
        self.graph = torch.cuda.CUDAGraph()
        for generator in (step.views, step.draws):
            self.graph.register_generator_state(generator)
        step.optimizer.zero_grad(set_to_none=True)
        try:
            # Other threads may go on: one of them collects the batches to come.
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.outcome = step.plain(self.images, self.labels)
        except RuntimeError as error:
            raise SodapError(
                f"the training step of {step.method.name} cannot be recorded as a CUDA graph: it "
                f"waits for the host ({error}); set steps_alike = False in its class"
            ) from error

    def replay(self, images: Tensor, labels: Tensor) -> Outcome:
        self.images.copy_(images, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)
        self.graph.replay()
        return self.outcome
