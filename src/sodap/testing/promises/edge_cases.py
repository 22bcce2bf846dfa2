"""Checks on unusual streams."""

from __future__ import annotations

from dataclasses import replace

from sodap.streams import Domain, Split
from sodap.testing.promises.checks import promise, require
from sodap.testing.trial import Trial


@promise
def any_number_of_classes(trial: Trial) -> None:
    """With two classes or ten, logits have as many columns."""
    for classes in (2, 10):
        stream = trial.tiny_stream(classes)
        learner = trial.learner(classes, epochs=1)
        trial.learn_next(learner, stream.domains)
        found = trial.logits(learner, stream.domains[0].test.images)
        require(found.shape[1] == classes, f"{found.shape[1]} logits for {classes} classes")
        require(bool(found.isfinite().all()), f"with {classes} classes some logits are not finite")


@promise
def a_class_may_be_missing(trial: Trial) -> None:
    """A stage can be learned without one of the classes."""
    domains = [
        replace(domain, train=_without(domain.train, absent))
        for domain, absent in zip(trial.stream.domains, (2, 0), strict=True)
    ]
    _learns(trial, domains)


@promise
def a_stage_may_be_one_batch(trial: Trial) -> None:
    """A stage of exactly one batch can be learned."""
    _learns(trial, [replace(each, train=each.train.take(16)) for each in trial.stream.domains])


@promise
def a_stage_may_be_one_image(trial: Trial) -> None:
    """A stage of a single image can be learned."""
    _learns(trial, [replace(each, train=each.train.take(1)) for each in trial.stream.domains])


def _without(split: Split, absent: int) -> Split:
    kept = split.labels != absent
    return Split(split.images[kept], split.labels[kept])


def _learns(trial: Trial, domains: list[Domain]) -> None:
    learner = trial.learner(epochs=1)
    for domain in domains:
        trial.learn_next(learner, domains)
        found = trial.logits(learner, domain.test.images)
        require(
            bool(found.isfinite().all()),
            f"after stage {learner.stages_learned} some logits are not finite",
        )
