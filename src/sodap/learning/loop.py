"""The training loop of one stage.

begin_stage -> [epoch: steps -> validate -> keep the best state] -> restore the best -> end_stage
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from sodap.errors import TrainingBrokeError
from sodap.evaluation import accuracy, confusion_matrix, macro_f1
from sodap.execution import EVALUATION_BATCH, ClassPredictions, Forward, Runtime, TrainStep
from sodap.learning.progress import StageProgress, snapshot
from sodap.learning.trace import TraceBuffer
from sodap.learning.training import Training
from sodap.methods import Method
from sodap.streams import BatchLoader, Split, Stage

OnEpoch = Callable[[StageProgress], None]
OnBatch = Callable[[int, int, int], None]
"""Called with `(epoch, steps done, steps of the epoch)`."""


def learn_stage(
    method: Method,
    stage: Stage,
    training: Training,
    runtime: Runtime,
    *,
    resumed: StageProgress | None = None,
    on_epoch: OnEpoch | None = None,
    on_batch: OnBatch | None = None,
) -> StageProgress:
    """Train `method` on one domain, or continue after the epoch that `resumed` describes."""
    progress = resumed or StageProgress(stage.number)
    train, val = stage.domain.train, stage.domain.val
    if resumed is None:
        # Shuffled: groups of consecutive images should not be of one class.
        order = method.randomness.generator("drift order", stage.number)
        observations = runtime.observe(method, train, training.batch_size, order)
        with runtime.stage_context():
            progress.begun = dict(method.eval().begin_stage(stage.number, observations))

    if not method.has_epochs:
        progress.finished = True
        return progress

    step = TrainStep(
        method,
        runtime,
        method.parameter_groups(training.lr, training.weight_decay),
        min(training.batch_size, len(train)),
        training.augmentation,
        progress.optimizer,
    )
    forward = Forward(method, runtime)
    if resumed is None and method.keeps_start:
        predictions = forward.predictions(val)
        _refuse_broken(predictions.problem(), stage, 0)
        _keep_if_best(progress, method, val, predictions)

    while not progress.finished:
        epoch = progress.epoch + 1
        decay = 0.5 * (1 + math.cos(math.pi * progress.epoch / training.epochs))

        began = time.perf_counter()
        timer = runtime.timer()
        steps = train_epoch(step, stage, epoch, decay, on_batch)
        timer.stop()
        predictions = forward.predictions(val)  # queued behind the steps, before the host waits
        trace = steps.fetch(epoch)
        broken = steps.not_finite(trace)
        problem = f"{', '.join(broken)} is not finite" if broken else predictions.problem()
        _refuse_broken(problem, stage, epoch)

        progress.epoch = epoch
        validation = _keep_if_best(progress, method, val, predictions)
        progress.finished = (
            epoch >= training.epochs or epoch - progress.best_epoch >= training.patience
        )
        progress.trace = progress.trace.concat(trace)
        progress.history.append(
            {
                "stage": stage.number,
                "domain": stage.domain.name,
                "epoch": epoch,
                "lr": training.lr * decay,
                "steps": len(trace),
                "losses": trace.means(),
                "weights": {name: float(weight) for name, weight in method.loss_weights().items()},
                **validation,
                "images_per_second": len(train) / timer.seconds(),
                "seconds": time.perf_counter() - began,
            }
        )
        progress.optimizer = step.optimizer.state_dict()
        if on_epoch is not None:
            on_epoch(progress)

    method.restore(progress.best, stage.number)
    return progress


def _keep_if_best(
    progress: StageProgress, method: Method, val: Split, predictions: ClassPredictions
) -> dict[str, float]:
    """Keep the state of the epoch `progress.epoch` if it is the best one; return its scores."""
    assert predictions.nll is not None
    matrix = confusion_matrix(val.labels, predictions.classes, method.classes)
    score, nll = macro_f1(matrix), float(predictions.nll.double().mean())
    value = score if method.selects_by == "macro_f1" else -nll
    if progress.best_value is None or value > progress.best_value:
        progress.best_value, progress.best_score = value, score
        progress.best_epoch = progress.epoch
        progress.best = snapshot(method.state())
    return {"val_macro_f1": score, "val_accuracy": accuracy(matrix), "val_nll": nll}


def _refuse_broken(problem: str | None, stage: Stage, epoch: int) -> None:
    if problem:
        where = f"stage {stage.number}, epoch {epoch}"
        raise TrainingBrokeError(f"training broke in {where}: {problem}; a lower lr may help")


def train_epoch(
    step: TrainStep, stage: Stage, epoch: int, decay: float, on_batch: OnBatch | None = None
) -> TraceBuffer:
    """Train on all images of the domain once; a GPU may still be working when this returns."""
    order = step.method.randomness.generator("order", stage.number, epoch)
    batches = BatchLoader(stage.domain.train, step.batch_size, step.runtime.device, order=order)
    step.method.train()
    step.begin_epoch(epoch, decay)
    buffer = TraceBuffer(len(batches), step.runtime.device)
    for done, (images, labels) in enumerate(batches, start=1):
        result = step(images, labels)
        buffer.add(len(labels), result.losses, result.weights)
        if on_batch is not None:
            on_batch(epoch, done, len(batches))
    return buffer


def end_stage(method: Method, stage: Stage, training: Training, runtime: Runtime) -> dict[str, Any]:
    """Let the method store what it needs of a domain that it will not see again."""
    order = method.randomness.generator("reference order", stage.number)
    train = runtime.observe(method, stage.domain.train, training.batch_size, order)
    val = runtime.observe(method, stage.domain.val, EVALUATION_BATCH)
    with runtime.stage_context():
        return dict(method.eval().end_stage(stage.number, train, val))
