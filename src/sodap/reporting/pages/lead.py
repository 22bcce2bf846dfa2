"""The result of a comparison in a few sentences, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sodap.formats import format_score

Record = Mapping[str, Any]


def lead(records: Mapping[str, Record]) -> str:
    """How much the first method forgot, how accurate it is, and the same numbers of the others.

    A record is one seed, so no winner is named; see `sodap.reporting.tables.conclusion`.
    """
    main, *others = records
    stages = len(records[main]["R"]["accuracy"])
    accuracy = {name: _metric(record, "average_accuracy") for name, record in records.items()}
    forgot = {name: _metric(record, "average_forgetting") for name, record in records.items()}

    if stages == 1:
        first = f"{main} has learned one domain: there is nothing to forget yet."
    else:
        told = "".join(f", {name} {format_score(forgot[name])}" for name in others)
        first = (
            f"After {stages} domains, learned one after the other, {main} has forgotten "
            f"{format_score(forgot[main])} of the accuracy that it once had (AvgF){told}."
        )
    told = "".join(f", {name} one of {format_score(accuracy[name])}" for name in others)
    second = (
        f"On the domains learned so far it has an average accuracy of "
        f"{format_score(accuracy[main])} (AvgACC){told}."
    )
    trust = " Each ran with one seed, which tells nothing of the noise." if others else ""
    return f"{first} {second}{trust}"


def _metric(record: Record, name: str) -> float | None:
    score: float | None = record["metrics"]["accuracy"][name]
    return score
