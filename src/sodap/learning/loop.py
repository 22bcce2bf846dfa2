"""The loop in plain sight: one stage of learning, from the first look at a domain to the last.

begin -> [epoch: steps -> validate -> keep the best -> checkpoint] -> restore the best -> end
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import AdamW, Optimizer

from sodap.errors import SodapError
from sodap.evaluation import accuracy, confusion_matrix, macro_f1
from sodap.learning.progress import StageProgress, snapshot
from sodap.learning.training import Training
from sodap.methods import Method
from sodap.streams import Augmentation, Batches, Split, Stage

EVALUATION_BATCH = 256

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
        look = _plain_batches(method, stage, training, fabric, "drift order")
        with fabric.autocast():
            progress.begun = dict(method.eval().begin_stage(stage.number, look))

    if not method.learns_by_gradient:
        progress.finished = True
        return progress

    optimizer = AdamW(method.parameter_groups(training.lr, training.weight_decay))
    starts = [group["lr"] for group in optimizer.param_groups]
    if progress.optimizer:
        optimizer.load_state_dict(progress.optimizer)

    while not progress.finished:
        epoch = progress.epoch + 1
        decay = 0.5 * (1 + math.cos(math.pi * progress.epoch / training.epochs))
        for group, start in zip(optimizer.param_groups, starts, strict=True):
            group["lr"] = start * decay

        began = time.perf_counter()
        losses = train_epoch(method, stage, epoch, training, optimizer, fabric, on_batch)
        seconds = time.perf_counter() - began

        matrix = evaluate(method, stage.domain.val, fabric)
        score = macro_f1(matrix)
        progress.epoch = epoch
        if score > progress.best_score:
            progress.best_score, progress.best_epoch = score, epoch
            progress.best = snapshot(method.state())
        progress.finished = (
            epoch >= training.epochs or epoch - progress.best_epoch >= training.patience
        )
        progress.history.append(
            {
                "stage": stage.number,
                "domain": stage.domain.name,
                "epoch": epoch,
                "lr": training.lr * decay,
                "losses": losses,
                "weights": method.weights(),
                "val_macro_f1": score,
                "val_accuracy": accuracy(matrix),
                "images_per_second": len(stage.domain.train) / seconds,
                "seconds": time.perf_counter() - began,
            }
        )
        progress.optimizer = optimizer.state_dict()
        if on_epoch is not None:
            on_epoch(progress)

    method.restore(progress.best, stage.number)
    return progress


def train_epoch(
    method: Method,
    stage: Stage,
    epoch: int,
    training: Training,
    optimizer: Optimizer,
    fabric: Fabric,
    on_batch: OnBatch | None = None,
) -> dict[str, float]:
    """One pass over the domain's training images; the mean of each loss."""
    where, randomness, device = (stage.number, epoch), method.randomness, fabric.device
    views = randomness.generator("augment", *where, device=device)
    replay = randomness.generator("replay", *where, device=device)
    augment = training.augmentation or Augmentation()
    method.view = lambda images, draws: method.backbone.prepare(augment(images, draws))
    batches = Batches(
        stage.domain.train,
        training.batch_size,
        device,
        lambda images: method.view(images, views),
        randomness.generator("order", *where),
    )
    method.train()
    sums: dict[str, Tensor] = {}
    for step, (images, labels) in enumerate(batches, start=1):
        with fabric.autocast():
            losses = method.losses(images, labels, replay)
            total = method.total(losses)
        optimizer.zero_grad(set_to_none=True)
        fabric.backward(total)
        method.before_step()
        optimizer.step()
        method.after_step()
        for name, loss in losses.items():  # summed on the device: no wait for the host
            sums[name] = sums.get(name, 0) + loss.detach() * len(labels)
        if on_batch is not None:
            on_batch(epoch, step, len(batches))
    means = {name: float(total) / len(stage.domain.train) for name, total in sums.items()}
    if not all(map(math.isfinite, means.values())):
        lost = ", ".join(name for name, mean in means.items() if not math.isfinite(mean))
        raise SodapError(
            f"training broke in stage {stage.number}, epoch {epoch}: {lost} is no finite number; "
            f"a lower lr may help"
        )
    return means


def _plain_batches(
    method: Method, stage: Stage, training: Training, fabric: Fabric, purpose: str
) -> Batches:
    """The training images as they are, shuffled, so that no group of them is of one class."""
    order = method.randomness.generator(purpose, stage.number)
    prepare = method.backbone.prepare
    return Batches(stage.domain.train, training.batch_size, fabric.device, prepare, order)


def end_stage(method: Method, stage: Stage, training: Training, fabric: Fabric) -> dict[str, Any]:
    """Let the method keep what it needs of a domain that it will not see again."""
    train = _plain_batches(method, stage, training, fabric, "reference order")
    val = Batches(stage.domain.val, EVALUATION_BATCH, fabric.device, method.backbone.prepare)
    with fabric.autocast():
        return dict(method.eval().end_stage(stage.number, train, val))


@torch.inference_mode()
def evaluate(method: Method, split: Split, fabric: Fabric) -> NDArray[np.int64]:
    """Confusion matrix `[C, C]` of a split, rows = truth."""
    method.eval()
    found = []
    for images, _ in Batches(split, EVALUATION_BATCH, fabric.device, method.backbone.prepare):
        with fabric.autocast():
            found.append(method(images).argmax(-1))
    return confusion_matrix(split.labels, torch.cat(found).cpu(), method.classes)
