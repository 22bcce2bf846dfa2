"""The constant classifier: it always predicts the most frequent class of the first domain.

It needs only the class counts of a record. A method that does not beat it has learned nothing from
the images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def constant_confusions(
    first_train: Sequence[int], tests: Sequence[Sequence[int]]
) -> list[NDArray[np.int64]]:
    """Confusion matrices `[C, C]` of the constant classifier, one per domain.

    It predicts the class with the largest count in `first_train` `[C]`, the training images of the
    first stage (the first of equally frequent classes). `tests` are the test counts `[C]` of each
    domain.
    """
    prediction = int(np.argmax(first_train))
    confusions = []
    for counts in tests:
        matrix = np.zeros((len(counts), len(counts)), dtype=np.int64)
        matrix[:, prediction] = counts
        confusions.append(matrix)
    return confusions
