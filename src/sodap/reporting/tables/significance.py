"""Whether seeds can tell two methods apart, where several are compared at once.

Of twenty comparisons without any difference, one has p < 0.05. So whatever is asked together is
corrected together, by Holm's method: the smallest p counts as many times as there are comparisons,
the next once less, and none becomes smaller than the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr  # type: ignore[import-untyped]

from sodap.evaluation import Difference
from sodap.reporting.tables.stream_table import SAME, StreamTable

ALPHA = 0.05

Question = tuple[StreamTable, str, str, str]
"""Of a table: the first method, the second, and the metric."""


@dataclass(frozen=True)
class Claim:
    """The first method minus the second, and what seeds say of it."""

    gap: Difference
    p: float | None
    """Student's, of the paired differences, corrected; None where seeds cannot tell, since there
    are too few, or since the difference is the same for all."""

    @property
    def certain(self) -> bool:
        """More than the noise between seeds, by p and by both intervals."""
        return self.p is not None and self.p < ALPHA and self.gap.sign != 0


def claims(questions: Sequence[Question]) -> list[Claim | None]:
    """One for each question, corrected for all of them; None for methods that share no seed."""
    gaps = [table.difference(first, second, key) for table, first, second, key in questions]
    corrected = holm([None if gap is None else p_value(gap) for gap in gaps])
    return [None if gap is None else Claim(gap, p) for gap, p in zip(gaps, corrected, strict=True)]


def p_value(gap: Difference) -> float | None:
    """Student's t, two-sided, of paired differences that are 0 on average; None without noise.

    A difference without an interval, which has too few seeds for one, has no p either.
    """
    sd = gap.student.sd
    if sd is None or gap.low is None:
        return None
    if sd < SAME:
        return 1.0 if abs(gap.mean) < SAME else None
    t = abs(gap.mean) / (sd / gap.count**0.5)
    return float(2 * stdtr(gap.count - 1, -t))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p values corrected for their number; those that are None are not among them."""
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    found: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, place) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        found[place] = least
    return found
