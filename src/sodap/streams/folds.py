"""Folds: K splits of a stream, in which every image is tested once.

A fold is written `2/5`, the second of five. Its images are the test split, and the others are split
into train and val. All images of a group are in one fold, in all domains of one origin, and every
fold has its share of each class of each domain. Folds depend only on the seed and on the names of
files and groups, like random splits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sodap.errors import SodapError

MAX_FOLDS = 100


@dataclass(frozen=True)
class Fold:
    """One of K folds; `number` counts from 1."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not (2 <= self.of <= MAX_FOLDS and 1 <= self.number <= self.of):
            raise SodapError(
                f"'{self}' is no fold; write NUMBER/FOLDS, for example 1/5, with 2 to {MAX_FOLDS} "
                f"folds"
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Fold:
        """The fold that is written `2/5`."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if found is None:
            raise SodapError(f"'{text}' is no fold; write NUMBER/FOLDS, for example 1/5")
        return cls(int(found[1]), int(found[2]))


def all_folds(count: int) -> list[Fold]:
    """The folds 1/count to count/count."""
    return [Fold(number, count) for number in range(1, count + 1)]


U = TypeVar("U")
S = TypeVar("S")


def assign_folds(strata: Mapping[U, Counter[S]], folds: int) -> dict[U, int]:
    """A fold, from 1, for each unit.

    `strata` counts the images of each stratum (a class of a domain) in each unit; the units are in
    random order. Rare strata come first, while there is most choice. A unit goes where the fewest
    images of its strata are, relative to their number; of equal folds, to the smallest.
    """
    total: Counter[S] = sum(strata.values(), Counter())
    holders: dict[S, list[U]] = {stratum: [] for stratum in total}
    for unit, counts in strata.items():
        for stratum in counts:
            holders[stratum].append(unit)
    held: list[Counter[S]] = [Counter() for _ in range(folds)]
    found: dict[U, int] = {}
    for stratum in sorted(total, key=lambda each: (len(holders[each]), str(each))):
        for unit in holders[stratum]:
            if unit not in found:
                place = _emptiest(held, strata[unit], total)
                held[place].update(strata[unit])
                found[unit] = place + 1
    return found


def _emptiest(held: Sequence[Counter[S]], counts: Counter[S], total: Counter[S]) -> int:
    """The fold, from 0, in which these images even out the strata most."""

    def load(place: int) -> tuple[float, int]:
        share = sum(count * held[place][each] / total[each] for each, count in counts.items())
        return round(share, 9), held[place].total()  # rounded: sums in another order are equal

    return min(range(len(held)), key=load)
