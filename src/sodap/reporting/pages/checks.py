"""Whether the splits of a run are what they should be, as far as its folder and images tell."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sodap.formats import plural
from sodap.streams import Stream
from sodap.streams.splits import SplitRow

MOST_PIXELS = 400_000_000
"""Bytes of images that are compared here; more is the work of `sodap data check`."""


@dataclass(frozen=True)
class Check:
    what: str
    good: bool | None
    """None where it could not be checked."""
    words: str

    @property
    def verdict(self) -> str:
        return {True: "good", False: "not good", None: "not checked"}[self.good]


def split_checks(
    record: Mapping[str, Any], rows: Sequence[SplitRow], stream: Stream | None, no_stream: str
) -> list[Check]:
    """What `rows` and the images of `stream` say, or that they are not there, and why."""
    return [
        _classes(record["stream"]),
        _shared("The same file in two splits", "file", rows, lambda row: row.path),
        _shared(
            "A group (patient, object) in two splits",
            "group",
            [row for row in rows if row.group],
            lambda row: row.group,
        ),
        _pixels(stream, no_stream, record["config"]["stream"]),
    ]


def _classes(described: Mapping[str, Any]) -> Check:
    classes = described.get("classes")
    missing = [
        f"{domain['name']} has no {kind} image of {(classes or ())[label]}"
        for domain in described["domains"]
        for kind, counts in domain.get("counts", {}).items()
        if sum(counts)  # a domain that is only tested has no others
        for label, count in enumerate(counts)
        if not count
    ]
    what = "Every class in every split"
    if not classes:
        return Check(what, None, "the record does not say")
    return Check(what, not missing, "; ".join(missing) or "none is missing")


def _shared(what: str, kind: str, rows: Sequence[SplitRow], of: Callable[[SplitRow], str]) -> Check:
    if not rows:
        return Check(what, None, f"the stream knows no {kind}s")
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        places[row.domain, of(row)].add(row.split)
    torn = sorted(name for (_, name), splits in places.items() if len(splits) > 1)
    if not torn:
        return Check(what, True, f"none of {plural(len(places), kind)}")
    return Check(what, False, f"{len(torn):,} of {plural(len(places), kind)}, such as {torn[0]}")


def _pixels(stream: Stream | None, no_stream: str, name: str) -> Check:
    what = "The same picture, pixel by pixel, in two splits"
    if stream is None:
        return Check(what, None, no_stream)
    splits = list(_splits(stream))
    if sum(images.nbytes for _, images in splits) > MOST_PIXELS:
        return Check(what, None, f"too many for this page; ask `sodap data check {name}`")
    seen: dict[bytes, set[str]] = defaultdict(set)
    count = 0
    for kind, images in splits:
        for image in images.numpy():
            seen[hashlib.blake2b(image.tobytes(), digest_size=16).digest()].add(kind)
            count += 1
    torn = sum(len(kinds) > 1 for kinds in seen.values())
    return Check(what, not torn, f"{torn:,} of {count:,} images" if torn else f"none of {count:,}")


def _splits(stream: Stream) -> Iterator[tuple[str, Tensor]]:
    for domain in stream.tested:
        for kind, split in domain.splits():
            yield kind, split.images
