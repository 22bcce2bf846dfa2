"""A prediction depends on its image alone, and hardly on the precision."""

from __future__ import annotations

import torch

from sodap.learning import load
from sodap.testing.promises.judging import demand, promise
from sodap.testing.trial import Trial


@promise
def each_image_counts_alone(trial: Trial) -> None:
    """The logits of an image depend on nothing but the image: not on its batch, not on order."""
    learner, images = trial.taught.learner, trial.stream.domains[0].test.images
    whole = trial.logits(learner, images)
    classes = len(learner.classes)
    demand(
        whole.shape == (len(images), classes),
        f"logits of {len(images)} images and {classes} classes are {list(whole.shape)}",
    )
    demand(bool(whole.isfinite().all()), "some logits are not finite")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    others = trial.stream.domains[1].test.images
    ways = {
        "asked once more": trial.logits(learner, images),
        "asked alone": torch.cat([trial.logits(learner, image[None]) for image in images[:6]]),
        "asked in another order": trial.logits(learner, images[order])[order.argsort()],
        "asked with other images": trial.logits(learner, torch.cat([others, images]))[
            len(others) :
        ],
    }
    for way, found in ways.items():
        expected = whole[: len(found)].softmax(-1)
        change = float((found.softmax(-1) - expected).abs().max())
        demand(
            change <= trial.tolerance,
            f"{way}, an image gets another answer: a probability changes by {change:.2g}",
        )


@promise
def precision_changes_little(trial: Trial) -> None:
    """In bf16 it learns, and what was learned in float32 is said again, nearly."""
    half = load(trial.taught.folder, device=trial.device, precision="bf16")
    found = trial.logits(half, trial.stream.domains[0].test.images).softmax(-1)
    change = float((found - trial.taught.first_logits.softmax(-1)).abs().max())
    demand(change <= 0.1, f"a probability changes by {change:.2g}")
    trial.teach(half, trial.stream.domains)
    found = trial.logits(half, trial.stream.domains[0].test.images)
    demand(bool(found.isfinite().all()), "after a stage in bf16 some logits are not finite")
