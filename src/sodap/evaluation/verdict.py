"""Whether a run is better than a constant answer, and which classes it never finds, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sodap.evaluation.confusion import accuracy
from sodap.evaluation.constant import constant_answer, constant_confusions
from sodap.evaluation.intervals import metric_intervals
from sodap.evaluation.matrix import final_average
from sodap.evaluation.proportions import Interval, tiny_tests
from sodap.formats import plural

MAX_NAMED = 6
"""Most classes that a sentence names."""
SAME = 1e-9


@dataclass(frozen=True)
class Verdict:
    """The final average of a run, beside what a constant answer would give."""

    final: float
    """Mean accuracy on the learned domains after the last stage."""
    interval: Interval | None
    """Interval of `final` over other test images; None without images."""
    constant: float
    """Final average of the best constant answer."""
    answer: str
    """Class of the constant answer."""
    recalls: Sequence[tuple[str, int, int]]
    """For each class: its name, how many test images are recognised, and how many there are.

    Of all learned domains together; empty if the confusion matrices are not known."""
    warnings: Sequence[str]
    """What speaks against the run as a whole, a sentence each."""
    in_domains: str
    """A sentence about classes that are never found in single domains; empty if there are none."""
    tiny: str
    """A sentence about test splits that are too small to measure much; empty if none is."""

    @property
    def sentences(self) -> list[str]:
        """Everything that is said, the most important first."""
        return [text for text in (*self.warnings, self.in_domains, self.tiny) if text]


def judge(
    results: Sequence[Sequence[float]],
    confusions: Sequence[NDArray[np.int64]],
    tests: Sequence[Sequence[int]],
    classes: Sequence[str],
    domains: Sequence[str],
) -> Verdict:
    """Judge R `[T, domains]` and the confusion matrices `[C, C]` of the last stage.

    `confusions` may be empty; `tests` are the test counts `[C]` of each domain.
    """
    learned = len(results)
    tests, domains, confusions = tests[:learned], domains[:learned], confusions[:learned]
    counts = [sum(each) for each in tests]
    label = constant_answer(tests)
    constant = float(np.mean([accuracy(each) for each in constant_confusions(label, tests)]))
    final = final_average(results)
    ends = metric_intervals(results, counts)["final_average"]
    pooled = np.sum(confusions, axis=0) if len(confusions) else np.zeros((0, 0), np.int64)
    recalls = [
        (name, int(row[place]), int(row.sum()))
        for place, (name, row) in enumerate(zip(classes, pooled, strict=False))
    ]
    return Verdict(
        final,
        ends,
        constant,
        classes[label],
        recalls,
        [
            *_against_constant(final, ends, constant, classes[label]),
            *_never_found(pooled, classes),
        ],
        _never_found_in(pooled, confusions, classes, domains),
        tiny_tests(list(zip(domains, counts, strict=True))),
    )


def _against_constant(
    final: float, ends: Interval | None, constant: float, answer: str
) -> list[str]:
    if final <= constant + SAME:
        return [
            f"No better than always answering '{answer}', which gives a final average of "
            f"{constant:.3f}; the model has {final:.3f}."
        ]
    if ends is not None and ends.low <= constant:
        return [
            f"Not clearly better than always answering '{answer}', which gives a final average of "
            f"{constant:.3f}: on other test images that of the model, {final:.3f}, could be "
            f"anything from {ends.low:.3f} to {ends.high:.3f}."
        ]
    return []


def _never_found(pooled: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    """A sentence about classes that are never predicted right in any domain."""
    only = _only_answer(pooled)
    if only is not None:
        return [f"Every answer is '{classes[only]}'; no other class is ever found."]
    missed = _missed(pooled)
    if not missed:
        return []
    if len(missed) == 1:
        images = plural(int(pooled[missed[0]].sum()), "test image")
        return [f"Class '{classes[missed[0]]}' is never found (0 of {images})."]
    return [f"Classes {_named(missed, pooled, classes)} are never found."]


def _never_found_in(
    pooled: NDArray[np.int64],
    confusions: Sequence[NDArray[np.int64]],
    classes: Sequence[str],
    domains: Sequence[str],
) -> str:
    """A sentence about classes that are found in some domains, but not in others."""
    if not len(confusions) or _only_answer(pooled) is not None:
        return ""
    everywhere = _missed(pooled)
    found = []
    for domain, matrix in zip(domains, confusions, strict=True):
        only = _only_answer(matrix)
        if only is not None:
            found.append(f"{domain} (every answer is '{classes[only]}')")
        elif here := [label for label in _missed(matrix) if label not in everywhere]:
            found.append(f"{domain} {_named(here, matrix, classes)}")
    return f"Never found in single domains: {'; '.join(found)}." if found else ""


def _missed(matrix: NDArray[np.int64]) -> list[int]:
    """Classes with images of which none is recognised."""
    return [label for label, row in enumerate(matrix) if row.any() and not row[label]]


def _only_answer(matrix: NDArray[np.int64]) -> int | None:
    """The only class that is predicted, if there are images of others; else None."""
    predicted = np.flatnonzero(matrix.sum(0))
    several = np.count_nonzero(matrix.sum(1)) > 1
    return int(predicted[0]) if several and len(predicted) == 1 else None


def _named(labels: Sequence[int], matrix: NDArray[np.int64], classes: Sequence[str]) -> str:
    """`'PDR' (0 of 34), 'NPDR' (0 of 2)`"""
    some = ", ".join(
        f"'{classes[label]}' (0 of {int(matrix[label].sum())})" for label in labels[:MAX_NAMED]
    )
    return f"{some} and {len(labels) - MAX_NAMED} more" if len(labels) > MAX_NAMED else some
