"""Durations of training steps and predictions of several methods, measured in turns.

Every contender runs the training loop's own step (`sodap.execution.TrainStep`) on one batch that is
already on the device, so that only the methods differ. Contenders take turns, so that a slower
moment of the machine slows all of them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import benchmarks.limit  # noqa: F401  registers the limit
from sodap.execution import Forward, GraphedCallable, TrainStep
from sodap.learning import Learner, Training
from sodap.methods import Observations
from sodap.methods.residual_sodap import ResidualSodap
from sodap.preserving import ClassStatistics
from sodap.streams import Augmentation

CLASSES = ("a", "b", "c")
LEARNING_RATE = 1e-3


@dataclass
class Contender:
    """A learner to be measured, and its durations."""

    name: str
    learner: Learner
    batch: int
    step: TrainStep = field(init=False)
    images: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    forward: Forward | None = None
    train_seconds: list[float] = field(default_factory=list)
    infer_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        method, device = self.learner.method, self.learner.runtime.device
        side = method.backbone.image_size
        draw = torch.Generator().manual_seed(0)
        shape = (self.batch, 3, side, side)
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw).to(device)
        self.labels = torch.randint(0, len(CLASSES), (self.batch,), generator=draw).to(device)
        method.train()
        if method.stage == 0:
            method.begin_stage(1, Observations([]))
        self.begin()

    def begin(self, augmentation: Augmentation | None = None) -> None:
        """Start as a stage does, with a new optimiser and a new CUDA graph."""
        method, runtime = self.learner.method, self.learner.runtime
        groups = method.parameter_groups(LEARNING_RATE, 0.01)
        self.step = TrainStep(method, runtime, groups, self.batch, augmentation)
        self.step.begin_epoch(1)

    def learn(self) -> None:
        self.learner.method.train()
        self.step(self.images, self.labels)

    def predict(self) -> None:
        if self.forward is None:
            self.forward = Forward(self.learner.method, self.learner.runtime, self.batch)
        self.learner.method.eval()
        self.forward(self.images)

    def images_per_second(self) -> float:
        return self.batch / statistics.median(self.train_seconds)

    def predictions_per_second(self) -> float:
        return self.batch / statistics.median(self.infer_seconds)


def make(
    method: str,
    backbone: str,
    batch: int,
    device: str,
    *,
    compiled: bool = False,
    cuda_graphs: bool = True,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    image_size: int | None = None,
) -> Contender:
    """Make a learner of random images; weights are random, except for the embedded micro ViT."""
    learner = Learner(
        CLASSES,
        method=method,
        options=options,
        backbone=backbone,
        weights="pretrained" if backbone == "micro" else "random",
        image_size=image_size,
        training=Training(batch_size=batch, compile=compiled, cuda_graphs=cuda_graphs),
        device=device,
    )
    return Contender(name or method, learner, batch)


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Mean duration of `work` over several calls."""
    wait(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return (time.perf_counter() - start) / times


def race(contenders: Sequence[Contender], *, rounds: int, times: int, warm_up: int = 6) -> None:
    """Measure durations and peak memory of all contenders in turns."""
    for contender in contenders:
        device = contender.learner.runtime.device
        contender.begin()
        contender.learn()  # allocates the optimiser's state, then captures
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        for _ in range(warm_up):
            contender.learn()
        wait(device)
        if device.type == "cuda":
            # Memory of training besides the weights and the batch.
            contender.peak_bytes = torch.cuda.max_memory_allocated() - before
        for _ in range(3):
            contender.predict()
    for _ in range(rounds):
        for contender in contenders:
            device = contender.learner.runtime.device
            contender.train_seconds.append(seconds(contender.learn, device, times))
        for contender in contenders:
            device = contender.learner.runtime.device
            contender.infer_seconds.append(seconds(contender.predict, device, times))


def step_ratio(first: Contender, second: Contender) -> float:
    """Duration of a step of `first` relative to `second`: the median over rounds.

    Both run in every round, so that a slower moment of the machine affects both.
    """
    return _paired(first.train_seconds, second.train_seconds)


def prediction_ratio(first: Contender, second: Contender) -> float:
    """Duration of a prediction of `first` relative to `second`."""
    return _paired(first.infer_seconds, second.infer_seconds)


def _paired(first: Sequence[float], second: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(first, second, strict=True))


def statistics_vs_epoch(contender: Contender) -> float:
    """Duration of the class statistics of one batch relative to a training step.

    On a GPU they are captured as a CUDA graph, like the pass over a domain that they belong to.
    """
    method, device = contender.learner.method, contender.learner.runtime.device
    kept = ClassStatistics(method.classes, method.backbone.width).to(device)
    features = torch.randn(contender.batch, method.backbone.width, device=device)
    update = GraphedCallable(kept.update, device)

    def keep() -> None:
        update(features, contender.labels)

    seconds(keep, device, 3)
    return seconds(keep, device, 50) / statistics.median(contender.train_seconds)


def age(contender: Contender, stages: int) -> None:
    """Put a Residual SODAP into the state it has after `stages` domains, with a full pool."""
    method = contender.learner.method
    assert isinstance(method, ResidualSodap)
    device = contender.learner.runtime.device
    pool = method.prompter.pool
    draw = torch.Generator(device).manual_seed(0)
    per_stage = max(1, (pool.capacity - pool.size) // (stages - 1))
    for number in range(2, stages + 1):
        statistics_ = ClassStatistics(method.classes, method.backbone.width).to(device)
        features = torch.randn(32, method.backbone.width, device=device, generator=draw)
        labels = torch.arange(32, device=device) % method.classes
        statistics_.update(features, labels)
        method.replay.absorb(statistics_)
        last = number == stages
        pool.expand(pool.capacity - pool.size if last else per_stage, draw)
    method.stage = stages
    method._freeze_shared_parts()
    contender.begin()
