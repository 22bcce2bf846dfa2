"""The classifier that has learned one word: the most frequent class of the first domain.

It needs no images, only the counts that every record holds. A method that does not beat it has
learned nothing that a glance at the labels would not have told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def constant_confusions(
    first_train: Sequence[int], tests: Sequence[Sequence[int]]
) -> list[NDArray[np.int64]]:
    """A confusion matrix `[C, C]` for each domain's test counts `[C]`.

    Every image is taken for the class that leads in `first_train` `[C]`, the training images of
    the first stage; of classes that are equally frequent, for the first.
    """
    answer = int(np.argmax(first_train))
    confusions = []
    for counts in tests:
        matrix = np.zeros((len(counts), len(counts)), dtype=np.int64)
        matrix[:, answer] = counts
        confusions.append(matrix)
    return confusions
