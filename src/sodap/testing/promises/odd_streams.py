"""Streams at the edge: many classes or few, a class that is missing, one image."""

from __future__ import annotations

from dataclasses import replace

from sodap.streams import Domain, Split
from sodap.testing.promises.judging import demand, promise
from sodap.testing.trial import Trial


@promise
def any_number_of_classes(trial: Trial) -> None:
    """Two classes or ten, not only three: the logits have as many columns."""
    for classes in (2, 10):
        stream = trial.stripes(classes)
        learner = trial.learner(classes, epochs=1)
        trial.teach(learner, stream.domains)
        found = trial.logits(learner, stream.domains[0].test.images)
        demand(found.shape[1] == classes, f"of {classes} classes it knows {found.shape[1]}")
        demand(bool(found.isfinite().all()), f"with {classes} classes some logits are not finite")


@promise
def a_class_may_be_missing(trial: Trial) -> None:
    """A stage without one of the classes is learned; so is the next, without another."""
    domains = [
        replace(domain, train=_without(domain.train, absent))
        for domain, absent in zip(trial.stream.domains, (2, 0), strict=True)
    ]
    _learns(trial, domains)


@promise
def a_stage_may_be_one_batch(trial: Trial) -> None:
    """A stage of exactly one batch is learned."""
    _learns(trial, [replace(each, train=each.train.take(16)) for each in trial.stream.domains])


@promise
def a_stage_may_be_one_image(trial: Trial) -> None:
    """A stage of a single image is learned: no division by n - 1, no empty batch."""
    _learns(trial, [replace(each, train=each.train.take(1)) for each in trial.stream.domains])


def _without(split: Split, absent: int) -> Split:
    kept = split.labels != absent
    return Split(split.images[kept], split.labels[kept])


def _learns(trial: Trial, domains: list[Domain]) -> None:
    learner = trial.learner(epochs=1)
    for domain in domains:
        trial.teach(learner, domains)
        found = trial.logits(learner, domain.test.images)
        demand(
            bool(found.isfinite().all()),
            f"after stage {learner.stages_learned} some logits are not finite",
        )
