"""What a learner answers: `Prediction` of new images, and `Scores` of labelled ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sodap.evaluation import accuracy, macro_f1, quadratic_kappa, recall_per_class
from sodap.execution import ClassPredictions


@dataclass(frozen=True)
class Prediction:
    """Predicted classes and probabilities of N images, in the order of the images."""

    labels: list[str | None]
    """The most probable class; None for a file in `errors`."""
    probabilities: Tensor
    """`[N, C]`; rows sum to 1, columns are in the order of the learner's classes; NaN for a file in
    `errors`."""
    domains: list[str | None] | None = None
    """The learned domain that each image is most probably from; None if the method cannot say."""
    domain_probabilities: Tensor | None = None
    """`[N, T]`; columns are in the order in which the domains were learned."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why files could not be read, by their position; only with `on_error="skip"`."""


@dataclass(frozen=True)
class Scores:
    """Scores of one split, all computed from its confusion matrix."""

    confusion: NDArray[np.int64]
    """`[C, C]`; rows are true classes."""
    predictions: ClassPredictions
    """Predicted class of each image."""

    @property
    def accuracy(self) -> float:
        return accuracy(self.confusion)

    @property
    def macro_f1(self) -> float:
        return macro_f1(self.confusion)

    @property
    def kappa(self) -> float:
        return quadratic_kappa(self.confusion)

    @property
    def recall(self) -> list[float | None]:
        return recall_per_class(self.confusion)
