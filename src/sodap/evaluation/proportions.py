"""Intervals of proportions, such as an accuracy, and of weighted sums of them.

The exact interval of Clopper and Pearson is used throughout. It contains the true share in at least
95 % of cases for any number of images, also if no image or every image is right, where resampling
the images would say that the accuracy is known exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sodap.formats import plural

LEVEL = 0.95
TINY_WIDTH = 0.2
"""A test split is tiny if the interval of `TYPICAL_ACCURACY` is wider than this."""
TYPICAL_ACCURACY = 0.8
MAX_NAMED = 6
"""Most splits that a sentence names."""


class Interval(NamedTuple):
    """Ends of an interval."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A value with the distances to the ends of its interval."""

    value: float
    below: float
    above: float

    @property
    def interval(self) -> Interval:
        return Interval(self.value - self.below, self.value + self.above)


def exact_interval(share: float, count: int, level: float = LEVEL) -> Interval | None:
    """Interval of Clopper and Pearson of a share of `count` images; None without images.

    `share` may also be the mean of scores between 0 and 1. Of all such scores with this mean, those
    that are only 0 or 1 vary most, so that the interval is wide enough for all of them.
    """
    if count < 1:
        return None
    # Imported on demand: it takes longer than to read a record.
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    right, outside = share * count, (1 - level) / 2
    low = 0.0 if right <= 0 else float(betaincinv(right, count - right + 1, outside))
    high = 1.0 if right >= count else float(betaincinv(right + 1, count - right, 1 - outside))
    return Interval(min(low, share), max(high, share))  # up to rounding


def scaled(share: float, count: int, weight: float, level: float = LEVEL) -> Estimate:
    """`weight` times a share of `count` images, with its exact interval."""
    ends = exact_interval(share, count, level)
    assert ends is not None, "a share of no images"
    return Estimate(weight * share, weight * (share - ends.low), weight * (ends.high - share))


def total(parts: Iterable[Estimate]) -> Estimate:
    """Sum of independent estimates, such as those of different domains.

    Its interval combines the distances of the parts to their own ends as if they were standard
    deviations (Zou and Donner, 2008), so that it inherits their asymmetry. Variances alone would be
    0 where every image is right.
    """
    known = list(parts)
    return Estimate(
        sum(part.value for part in known),
        sum(part.below**2 for part in known) ** 0.5,
        sum(part.above**2 for part in known) ** 0.5,
    )


def difference(gained: Estimate, lost: Estimate, correlation: float) -> Estimate:
    """`gained` minus `lost`, two estimates from the same images (Zou and Donner, 2008)."""

    def together(one: float, other: float) -> float:
        return float(max(0.0, one**2 + other**2 - 2 * correlation * one * other) ** 0.5)

    return Estimate(
        gained.value - lost.value,
        together(gained.below, lost.above),
        together(gained.above, lost.below),
    )


# ------------------------------------------------------------------ before anything is measured


def is_tiny(count: int) -> bool:
    """Whether a test split has too few images to measure an accuracy well."""
    ends = exact_interval(TYPICAL_ACCURACY, count)
    return ends is None or ends.high - ends.low > TINY_WIDTH


def tiny_tests(counts: Sequence[tuple[str, int]]) -> str:
    """A sentence about test splits that are tiny, from names and sizes; empty if none is."""
    tiny = sorted(((count, name) for name, count in counts if is_tiny(count)), key=lambda e: e[0])
    if not tiny:
        return ""
    least = tiny[0][0]
    named = ", ".join(f"{name} ({plural(count, 'image')})" for count, name in tiny[:MAX_NAMED])
    more = f" and {len(tiny) - MAX_NAMED} more" if len(tiny) > MAX_NAMED else ""
    what = f"{'Tiny test splits' if len(tiny) > 1 else 'A tiny test split'}: {named}{more}"
    ends = exact_interval(TYPICAL_ACCURACY, least)
    if ends is None:
        return f"{what}. Without test images nothing is measured."
    return (
        f"{what}. With {plural(least, 'image')}, an accuracy of {TYPICAL_ACCURACY:.2f} has a 95 % "
        f"interval from {ends.low:.2f} to {ends.high:.2f}."
    )
