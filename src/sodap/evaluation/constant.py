"""The constant answer: a classifier that gives the same class for every image.

A method that does not beat it has learned nothing from the images. The class is the one with which
the answer does best on the domains of a stream, so that no method gets by with answering another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def constant_answer(tests: Sequence[Sequence[int]]) -> int:
    """Class whose constant answer has the highest final average; the first of several.

    `tests` are the test counts `[C]` of each learned domain.
    """
    shares = [np.asarray(counts, np.float64) / max(sum(counts), 1) for counts in tests]
    return int(np.argmax(np.mean(shares, axis=0).round(12)))


def constant_confusions(answer: int, tests: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
    """Confusion matrices `[C, C]` of a constant answer, from the test counts `[C]` of domains."""
    confusions = []
    for counts in tests:
        matrix = np.zeros((len(counts), len(counts)), dtype=np.int64)
        matrix[:, answer] = counts
        confusions.append(matrix)
    return confusions
