"""The sentences say what the numbers say, also when the numbers are bad."""

from __future__ import annotations

from typing import Any

import pytest

from sodap.reporting.pages.lead import lead

from .made_records import made_record


def told(accuracy: float, forgetting: float | None, stages: int = 3) -> dict[str, Any]:
    metrics = {"average_accuracy": accuracy, "average_forgetting": forgetting}
    return made_record(stages) | {"metrics": {"accuracy": metrics}}


CAVEAT = "Each ran with one seed, which tells nothing of the noise."


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((0.9, 0.1), (0.8, 0.2)),
        ((0.7, 0.3), (0.8, 0.2)),
        ((0.7, 0.1), (0.8, 0.2)),
        ((0.9, 0.2), (0.8, 0.2)),
    ],
)
def test_one_seed_has_no_winner(ours: tuple[float, float], theirs: tuple[float, float]) -> None:
    """Whichever is ahead: the numbers, and what they are worth."""
    assert lead({"ours": told(*ours), "theirs": told(*theirs)}) == (
        f"After 3 domains, learned one after the other, ours has forgotten {ours[1]:.3f} of the "
        f"accuracy that it once had (AvgF), theirs {theirs[1]:.3f}. On the domains learned so far "
        f"it has an average accuracy of {ours[0]:.3f} (AvgACC), theirs one of {theirs[0]:.3f}. "
        f"{CAVEAT}"
    )


def test_every_other_method_is_told() -> None:
    text = lead({"ours": told(0.9, 0.1), "weak": told(0.5, 0.4), "strong": told(0.95, 0.2)})
    assert "(AvgF), weak 0.400, strong 0.200." in text
    assert f"(AvgACC), weak one of 0.500, strong one of 0.950. {CAVEAT}" in text


def test_after_one_stage_nothing_can_be_forgotten() -> None:
    records = {"ours": told(0.9, None, 1), "theirs": told(0.8, None, 1)}
    assert lead(records) == (
        "ours has learned one domain: there is nothing to forget yet. On the domains learned so "
        "far it has an average accuracy of 0.900 (AvgACC), theirs one of 0.800. "
        f"{CAVEAT}"
    )


def test_alone_there_is_nobody_to_compare_with() -> None:
    assert lead({"ours": told(0.9, 0.1)}).endswith("average accuracy of 0.900 (AvgACC).")
