"""The loop in plain sight: one stage of learning, from the first look at a domain to the last.

begin -> [epoch: steps -> validate -> keep the best -> checkpoint] -> restore the best -> end
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from lightning.fabric import Fabric

from sodap.errors import TrainingBrokeError
from sodap.evaluation import accuracy, confusion_matrix, macro_f1
from sodap.learning.forward import EVALUATION_BATCH, Forward
from sodap.learning.fusing import fused
from sodap.learning.observations import GraphedObservations
from sodap.learning.progress import StageProgress, snapshot
from sodap.learning.step import Step, make_optimizer, set_learning_rates
from sodap.learning.stopwatch import Stopwatch
from sodap.learning.trace import TraceBuffer
from sodap.learning.training import Training
from sodap.methods import Method, Observations
from sodap.streams import Augmentation, BatchLoader, Stage

OnEpoch = Callable[[StageProgress], None]
OnBatch = Callable[[int, int, int], None]
"""`(epoch, steps done, steps of the epoch)`"""


def learn_stage(
    method: Method,
    stage: Stage,
    training: Training,
    fabric: Fabric,
    *,
    resumed: StageProgress | None = None,
    on_epoch: OnEpoch | None = None,
    on_batch: OnBatch | None = None,
) -> StageProgress:
    """Teach `method` one domain. With `resumed`, go on after the epoch that it describes."""
    progress = resumed or StageProgress(stage.number)
    if resumed is None:
        look = _training_images(method, stage, training, fabric, "drift order")
        with fabric.autocast(), fused(False):
            progress.begun = dict(method.eval().begin_stage(stage.number, look))

    if not method.learns_by_gradient:
        progress.finished = True
        return progress

    groups = method.parameter_groups(training.lr, training.weight_decay)
    starts = [float(group["lr"]) for group in groups]
    optimizer = make_optimizer(groups, fabric.device)
    if progress.optimizer:
        optimizer.load_state_dict(progress.optimizer)
    augmentation = training.augmentation or Augmentation()
    size, record = min(training.batch_size, len(stage.domain.train)), training.record_steps
    step = Step(method, optimizer, fabric, size, augmentation, record=record)
    forward = Forward(method, fabric, record=record)

    while not progress.finished:
        epoch = progress.epoch + 1
        decay = 0.5 * (1 + math.cos(math.pi * progress.epoch / training.epochs))
        set_learning_rates(optimizer, [start * decay for start in starts], fabric.device)

        began = time.perf_counter()
        watch = Stopwatch(fabric.device)
        steps = train_epoch(step, stage, epoch, on_batch)
        watch.stop()
        answers = forward.answers(stage.domain.val)  # only this waits for the steps
        trace = steps.fetch(epoch)
        lost = steps.broken(trace)
        if broken := f"{', '.join(lost)} is no finite number" if lost else answers.broken():
            where = f"stage {stage.number}, epoch {epoch}"
            raise TrainingBrokeError(f"training broke in {where}: {broken}; a lower lr may help")

        matrix = confusion_matrix(stage.domain.val.labels, answers.classes, method.classes)
        score = macro_f1(matrix)
        progress.epoch = epoch
        if score > progress.best_score:
            progress.best_score, progress.best_epoch = score, epoch
            progress.best = snapshot(method.state())
        progress.finished = (
            epoch >= training.epochs or epoch - progress.best_epoch >= training.patience
        )
        progress.trace = progress.trace.then(trace)
        progress.history.append(
            {
                "stage": stage.number,
                "domain": stage.domain.name,
                "epoch": epoch,
                "lr": training.lr * decay,
                "steps": len(trace),
                "losses": trace.means(),
                "weights": {k: float(weight) for k, weight in method.loss_weights().items()},
                "val_macro_f1": score,
                "val_accuracy": accuracy(matrix),
                "images_per_second": len(stage.domain.train) / watch.seconds(),
                "seconds": time.perf_counter() - began,
            }
        )
        progress.optimizer = optimizer.state_dict()
        if on_epoch is not None:
            on_epoch(progress)

    method.restore(progress.best, stage.number)
    return progress


def train_epoch(
    step: Step, stage: Stage, epoch: int, on_batch: OnBatch | None = None
) -> TraceBuffer:
    """One pass over the domain's training images, and what each of its steps will have given.

    A GPU may still be at work on them.
    """
    order = step.method.randomness.generator("order", stage.number, epoch)
    batches = BatchLoader(stage.domain.train, step.batch_size, step.fabric.device, order=order)
    step.method.train()
    step.begin_epoch(epoch)
    buffer = TraceBuffer(len(batches), step.fabric.device)
    for done, (images, labels) in enumerate(batches, start=1):
        outcome = step(images, labels)
        buffer.add(len(labels), outcome.losses, outcome.weights)
        if on_batch is not None:
            on_batch(epoch, done, len(batches))
    return buffer


def _training_images(
    method: Method, stage: Stage, training: Training, fabric: Fabric, purpose: str
) -> Observations:
    """Training images without augmentation, shuffled so that no group of them is of one class."""
    order = method.randomness.generator(purpose, stage.number)
    batches = BatchLoader(
        stage.domain.train, training.batch_size, fabric.device, method.backbone.prepare, order
    )
    return _observations(method, batches, training)


def _observations(method: Method, batches: BatchLoader, training: Training) -> Observations:
    if training.record_steps and method.graph_safe:
        return GraphedObservations(batches, batches.device)
    return Observations(batches)


def end_stage(method: Method, stage: Stage, training: Training, fabric: Fabric) -> dict[str, Any]:
    """Let the method keep what it needs of a domain that it will not see again."""
    train = _training_images(method, stage, training, fabric, "reference order")
    val = BatchLoader(stage.domain.val, EVALUATION_BATCH, fabric.device, method.backbone.prepare)
    with fabric.autocast(), fused(False):
        observed = _observations(method, val, training)
        return dict(method.eval().end_stage(stage.number, train, observed))
