"""The sentences say what the numbers say, also when the numbers are bad."""

from __future__ import annotations

from typing import Any

import pytest

from sodap.reporting.lead import lead, shown

from .made_records import made_record


def told(accuracy: float, forgetting: float | None, stages: int = 3) -> dict[str, Any]:
    metrics = {"average_accuracy": accuracy, "average_forgetting": forgetting}
    return made_record(stages) | {"metrics": {"accuracy": metrics}}


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ((0.9, 0.1), (0.8, 0.2), "forgets less and is more accurate, so it wins on both counts."),
        ((0.7, 0.3), (0.8, 0.2), "forgets more and is less accurate, so it loses on both counts."),
        ((0.7, 0.1), (0.8, 0.2), "forgets less but is less accurate, so it does not win on both"),
        ((0.9, 0.3), (0.8, 0.2), "forgets more but is more accurate, so it does not win on both"),
        ((0.9, 0.2), (0.8, 0.2), "forgets just as much and is more accurate, so it does not win"),
        ((0.8001, 0.2), (0.8002, 0.2), "forgets just as much and is just as accurate, so it does"),
    ],
)
def test_verdict(ours: tuple[float, float], theirs: tuple[float, float], verdict: str) -> None:
    text = lead({"ours": told(*ours), "theirs": told(*theirs)})
    assert f": ours {verdict}" in text
    for number in (*ours, *theirs):
        assert shown(number) in text


def test_every_other_method_has_to_be_beaten() -> None:
    records = {"ours": told(0.9, 0.1), "weak": told(0.5, 0.5), "strong": told(0.95, 0.2)}
    assert "forgets less but is less accurate" in lead(records)


def test_after_one_stage_nothing_can_be_forgotten() -> None:
    records = {"ours": told(0.9, None, 1), "theirs": told(0.8, None, 1)}
    assert lead(records) == (
        "ours has learned one domain: there is nothing to forget yet. On the domains learned so "
        "far it has an average accuracy of 0.900 (AvgACC), theirs one of 0.800: "
        "ours is more accurate."
    )


def test_alone_there_is_nobody_to_beat() -> None:
    assert lead({"ours": told(0.9, 0.1)}).endswith("average accuracy of 0.900 (AvgACC).")


def test_scores_are_shown_with_three_digits() -> None:
    assert [shown(x) for x in (0.12345, 1.0, -0.0001, -0.25, None)] == [
        "0.123", "1.000", "0.000", "-0.250", "–",
    ]  # fmt: skip
