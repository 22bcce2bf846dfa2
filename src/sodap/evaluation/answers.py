"""Answers of a run to single test images, and scores of weighted images.

Images of one unit (a patient, a lesion) are not independent. So everything that draws images at
random draws whole units: a score is a function of sums over units, and a drawn unit counts as often
as it is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sodap.evaluation.confusion import confusion_matrix
from sodap.evaluation.intervals import metric_weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SCORES = (
    *("average_accuracy", "average_forgetting", "final_average", "backward_transfer"),
    *("balanced_accuracy", "macro_f1", "rarest_recall"),
)
"""Scores that `scores` returns."""


@dataclass(frozen=True)
class DomainAnswers:
    """Answers to the N test images of a domain after each of T stages."""

    labels: Ints
    """`[N]`"""
    units: Ints
    """`[N]`; the same number in two domains is the same unit."""
    answers: Ints
    """`[T, N]`"""
    folds: Ints | None = None
    """The fold of each image `[N]`, tested by a run of its own; None for a single run."""

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which answers are right, `[T, N]`."""
        return np.equal(self.answers, self.labels)

    def confusions(self, classes: int) -> list[Ints]:
        """A confusion matrix `[C, C]` after each stage."""
        return [confusion_matrix(self.labels, stage, classes) for stage in self.answers]

    def same_images(self, other: DomainAnswers) -> bool:
        """Whether both are about the same images, as far as labels and units tell."""
        return np.array_equal(self.labels, other.labels) and np.array_equal(self.units, other.units)


Answers = Sequence[DomainAnswers]
"""The answers of a run, by domain; the first T domains are the learned ones."""


def rarest_class(counts: Sequence[Sequence[int]]) -> int | None:
    """The class with the fewest test images `[domains][classes]`, the first of equal ones.

    Classes without images do not count; None if there are fewer than two others.
    """
    total = np.sum(np.asarray(counts, np.int64), axis=0)
    present = np.flatnonzero(total)
    return int(present[np.argmin(total[present])]) if len(present) > 1 else None


class UnitSums:
    """Sums over the images of each unit of one run, from which scores of drawn units follow."""

    def __init__(self, answers: Answers, classes: int, keys: Sequence[Ints] | None = None) -> None:
        """`keys` `[N]` of each domain say what is summed, if not the images of a unit."""
        self.stages, self.classes = len(answers[0].answers), classes
        learned = answers[: self.stages]
        keys = [each.units for each in learned] if keys is None else keys[: self.stages]
        units, places = np.unique(np.concatenate(keys), return_inverse=True)
        sizes = np.cumsum([len(each.labels) for each in learned])[:-1]
        places_of = np.split(places, sizes)
        T, D, C = self.stages, len(learned), classes
        right = np.zeros((len(units), T, D), np.float32)
        labels, found, hits = (np.zeros((len(units), D, C), np.float32) for _ in range(3))
        for d, (each, place) in enumerate(zip(learned, places_of, strict=True)):
            for t in range(T):
                np.add.at(right[:, t, d], place, each.right[t])
            np.add.at(labels[:, d], (place, each.labels), 1)
            np.add.at(found[:, d], (place, each.answers[-1]), 1)
            np.add.at(hits[:, d], (place, each.labels), each.right[-1])
        self.shapes = ((T, D), (D, C), (D, C), (D, C))
        self.columns = np.concatenate(
            [part.reshape(len(units), -1) for part in (right, labels, found, hits)], axis=1
        )
        """`[U, K]`"""
        present = labels.sum(2) > 0  # [U, D]
        self.strata = present @ (1 << np.arange(D))
        """In which domains each unit has images `[U]`, as one number."""
        self.rarest = rarest_class(labels.sum(0).astype(np.int64).tolist())

    def scores(self, weights: NDArray[np.float32]) -> dict[str, Floats]:
        """Scores `[B]` of B draws, in which units count `weights` `[B, U]` times."""
        return self.scores_of((weights @ self.columns).astype(np.float64))

    def scores_of(self, sums: Floats) -> dict[str, Floats]:
        """Scores `[B]` of sums over images, `[B, K]`."""
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])[:-1]
        right, labels, found, hits = (
            part.reshape(len(sums), *shape)
            for part, shape in zip(np.split(sums, ends, axis=1), self.shapes, strict=True)
        )
        R = _ratio(right, labels.sum(2)[:, None, :])  # [B, T, D]
        scores = {
            name: (R * each).sum((1, 2))
            for name, each in metric_weights(self.stages).items()
            if each is not None
        }
        if self.stages > 1:
            lost = [R[:, d:, d].max(1) - R[:, -1, d] for d in range(self.stages - 1)]
            scores["average_forgetting"] = np.mean(lost, axis=0)
        scores["balanced_accuracy"] = _mean_present(hits, labels).mean(1)
        scores["macro_f1"] = _mean_present(2 * hits, labels + found).mean(1)
        if self.rarest is not None:
            scores["rarest_recall"] = _ratio(
                hits[:, :, self.rarest].sum(1), labels[:, :, self.rarest].sum(1)
            )
        return scores


def scores(answers: Answers, classes: int) -> dict[str, float]:
    """Scores of a run by name; those that one stage does not define are left out."""
    sums = UnitSums(answers, classes)
    ones = np.ones((1, len(sums.columns)), np.float32)
    return {name: float(found[0]) for name, found in sums.scores(ones).items()}


def _ratio(part: Floats, whole: Floats) -> Floats:
    """`part / whole`, and 0 where there is nothing."""
    return np.divide(part, np.maximum(whole, 1))


def _mean_present(part: Floats, whole: Floats) -> Floats:
    """Mean of `part / whole` over the last axis, where `whole` is not 0."""
    present = (whole > 0).sum(-1)
    return _ratio(_ratio(part, whole).sum(-1), present.astype(np.float64))
