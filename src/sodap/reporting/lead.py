"""The result of a comparison in two sentences, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def shown(score: float | None) -> str:
    """A score as readers see it; a dash where there is none, as for forgetting at the start."""
    return "–" if score is None else f"{round(score, 3) + 0.0:.3f}"  # + 0.0: never -0.000


def lead(records: Mapping[str, Record]) -> str:
    """How much the first method forgot, how accurate it is, and whether it beat the others."""
    main, *others = records
    stages = len(records[main]["R"]["accuracy"])
    accuracy = {name: _metric(record, "average_accuracy") for name, record in records.items()}
    forgot = {name: _metric(record, "average_forgetting") for name, record in records.items()}

    if stages == 1:
        first = f"{main} has learned one domain: there is nothing to forget yet."
    else:
        told = "".join(f", {name} {shown(forgot[name])}" for name in others)
        first = (
            f"After {stages} domains, learned one after the other, {main} has forgotten "
            f"{shown(forgot[main])} of the accuracy that it once had (AvgF){told}."
        )
    told = "".join(f", {name} one of {shown(accuracy[name])}" for name in others)
    second = (
        f"On the domains learned so far it has an average accuracy of {shown(accuracy[main])} "
        f"(AvgACC){told}"
    )
    verdict = f": {_verdict(main, others, accuracy, forgot)}" if others else ""
    return f"{first} {second}{verdict}."


def _verdict(
    main: str,
    others: Sequence[str],
    accuracy: Mapping[str, float | None],
    forgot: Mapping[str, float | None],
) -> str:
    """Who won, as far as the digits shown can tell."""
    ahead = _compare(accuracy, main, others, max)
    accurate = f"is {('less', 'just as', 'more')[ahead + 1]} accurate"
    if None in forgot.values():
        return f"{main} {accurate}"
    worse = _compare(forgot, main, others, min)
    forgets = f"forgets {('less', 'just as much', 'more')[worse + 1]}"
    joint = "but" if ahead == worse != 0 else "and"
    end = {2: "it wins on both counts", -2: "it loses on both counts"}.get(
        ahead - worse, "it does not win on both counts"
    )
    return f"{main} {forgets} {joint} {accurate}, so {end}"


def _compare(
    scores: Mapping[str, float | None],
    main: str,
    others: Sequence[str],
    best: Callable[[Iterable[float]], float],
) -> int:
    """-1, 0 or 1: the main score is below, equal to or above the best of the others."""
    rounded = {name: float(shown(score)) for name, score in scores.items()}
    rival = best(rounded[name] for name in others)
    return (rounded[main] > rival) - (rounded[main] < rival)


def _metric(record: Record, name: str) -> float | None:
    score: float | None = record["metrics"]["accuracy"][name]
    return score
