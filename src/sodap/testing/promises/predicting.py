"""Checks of predictions."""

from __future__ import annotations

import torch

from sodap.learning import load
from sodap.testing.promises.checks import promise, require
from sodap.testing.trial import Trial


@promise
def predictions_are_independent_of_the_batch(trial: Trial) -> None:
    """The logits of an image depend only on the image, not on its batch."""
    learner, images = trial.trained.learner, trial.stream.domains[0].test.images
    whole = trial.logits(learner, images)
    classes = len(learner.classes)
    require(
        whole.shape == (len(images), classes),
        f"logits of {len(images)} images and {classes} classes are {list(whole.shape)}",
    )
    require(bool(whole.isfinite().all()), "some logits are not finite")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    others = trial.stream.domains[1].test.images
    variants = {
        "predicted again": trial.logits(learner, images),
        "predicted alone": torch.cat([trial.logits(learner, image[None]) for image in images[:6]]),
        "predicted in another order": trial.logits(learner, images[order])[order.argsort()],
        "predicted with other images": trial.logits(learner, torch.cat([others, images]))[
            len(others) :
        ],
    }
    for variant, found in variants.items():
        expected = whole[: len(found)].softmax(-1)
        change = float((found.softmax(-1) - expected).abs().max())
        require(
            change <= trial.tolerance,
            f"{variant}, a probability of an image changes by {change:.2g}",
        )


@promise
def bf16_changes_little(trial: Trial) -> None:
    """In bf16 it learns, and predicts nearly the same as in float32."""
    half = load(trial.trained.folder, device=trial.device, precision="bf16")
    found = trial.logits(half, trial.stream.domains[0].test.images).softmax(-1)
    change = float((found - trial.trained.first_logits.softmax(-1)).abs().max())
    require(change <= 0.1, f"a probability changes by {change:.2g}")
    trial.learn_next(half, trial.stream.domains)
    found = trial.logits(half, trial.stream.domains[0].test.images)
    require(bool(found.isfinite().all()), "after a stage in bf16 some logits are not finite")
