"""What is said about a run: the constant answer, classes that are never found, tiny splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sodap.evaluation import (
    Verdict,
    accuracy,
    constant_answer,
    constant_confusions,
    judge,
    macro_f1,
)

CLASSES = ("NoDR", "NPDR", "PDR")
DOMAINS = ("zeiss", "topcon")


def verdict(*confusions: list[list[int]]) -> Verdict:
    """The verdict on a run that ends with these confusion matrices, one per domain."""
    matrices = [np.array(each) for each in confusions]
    final = [accuracy(matrix) for matrix in matrices]
    tests = [matrix.sum(1).tolist() for matrix in matrices]
    return judge([final] * len(matrices), matrices, tests, CLASSES, DOMAINS)


GOOD = [[900, 50, 50], [50, 900, 50], [50, 50, 900]]


def test_nothing_is_said_against_a_good_model() -> None:
    found = verdict(GOOD, GOOD)
    assert found.sentences == []
    assert found.final == pytest.approx(0.9)
    assert found.constant == pytest.approx(1 / 3)
    assert found.recalls == [(name, 1800, 2000) for name in CLASSES]


def test_a_model_that_is_no_better_than_a_constant_answer() -> None:
    found = verdict([[30, 10, 20], [5, 5, 0], [5, 0, 5]], [[40, 10, 10], [9, 1, 0], [5, 4, 1]])
    assert found.answer == "NoDR"
    assert found.constant == pytest.approx(0.75)
    assert found.final < found.constant
    (sentence,) = found.warnings
    assert "better than always answering 'NoDR'" in sentence
    assert "0.750" in sentence


def test_a_model_that_is_better_only_on_these_few_images() -> None:
    found = verdict([[4, 1, 1], [1, 2, 0], [0, 0, 3]])
    assert found.final > found.constant
    assert found.interval is not None
    assert found.interval.low < found.constant
    (sentence,) = found.warnings
    assert "better than always answering 'NoDR'" in sentence
    assert "12" in found.tiny


def test_classes_that_are_never_found() -> None:
    found = verdict(
        [[900, 50, 50], [50, 900, 50], [17, 17, 0]], [[900, 100, 0], [100, 900, 0], [0, 9, 0]]
    )
    (sentence,) = found.warnings
    assert "'PDR' is never found" in sentence
    assert "0 of 43" in sentence
    assert found.recalls[2] == ("PDR", 0, 43)


def test_a_class_that_is_never_found_in_one_domain() -> None:
    found = verdict(GOOD, [[900, 50, 50], [50, 900, 50], [3, 4, 0]])
    assert found.warnings == []
    assert "topcon 'PDR' (0 of 7)" in found.in_domains
    assert "zeiss" not in found.in_domains


def test_a_model_that_always_gives_the_same_answer() -> None:
    """It is never called better than a constant answer, whichever class it answers."""
    for answer in range(3):
        tests = [[60, 20, 20], [10, 10, 80]]
        found = verdict(*(matrix.tolist() for matrix in constant_confusions(answer, tests)))
        assert found.final <= found.constant
        assert any("always answering" in each for each in found.warnings)
        assert any(f"Every answer is '{CLASSES[answer]}'" in each for each in found.warnings)
    only_here = verdict(GOOD, [[0, 500, 0], [0, 500, 0], [0, 500, 0]])
    assert only_here.warnings == []
    assert "topcon (every answer is 'NPDR')" in only_here.in_domains


def test_a_class_without_images_is_not_missed() -> None:
    found = verdict([[900, 10, 0], [10, 900, 0], [0, 0, 0]])
    assert found.warnings == []
    assert found.recalls[2] == ("PDR", 0, 0)


def test_without_confusion_matrices_the_constant_answer_still_counts() -> None:
    found = judge([[0.5, 0.1], [0.2, 0.4]], [], [[8, 2, 0], [5, 3, 2]], CLASSES, DOMAINS)
    assert found.recalls == []
    assert len(found.warnings) == 1
    assert found.constant == pytest.approx(0.65)


counts = st.lists(
    st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), min_size=1, max_size=3
)


@given(counts, st.integers(0, 2))
def test_no_other_constant_answer_is_better(tests: list[list[int]], other: int) -> None:
    def final(answer: int) -> float:
        matrices: list[NDArray[np.int64]] = constant_confusions(answer, tests)
        return float(np.mean([accuracy(matrix) for matrix in matrices]))

    assert final(constant_answer(tests)) >= final(other) - 1e-9


def test_confusions_of_a_constant_answer() -> None:
    first, second = constant_confusions(1, [[2, 5, 3], [4, 0, 0]])
    assert first.tolist() == [[0, 2, 0], [0, 5, 0], [0, 3, 0]]
    assert accuracy(first) == 0.5
    assert accuracy(second) == 0.0
    # By hand: class 1 has F1 = 2*5 / (10 + 5), the others 0.
    assert macro_f1(first) == pytest.approx((10 / 15) / 3)
    assert constant_answer([[4, 4, 0]]) == 0
