"""Checks of the splits of a run: missing classes, and images that are in two splits."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sodap.formats import plural
from sodap.runs.record import StreamInfo
from sodap.streams import Stream
from sodap.streams.splits import SplitRow

MAX_BYTES = 400_000_000
"""Most bytes of images to compare here; `sodap data check` compares more."""


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    title: str
    passed: bool | None
    """Whether the check passed; None if it was not possible."""
    details: str

    @property
    def status(self) -> str:
        return {True: "passed", False: "failed", None: "not checked"}[self.passed]


def check_splits(
    info: StreamInfo, rows: Sequence[SplitRow], stream: Stream | None, no_stream: str
) -> list[Check]:
    """Check a stream by its record, its `splits.csv` and, if they are loaded, its images.

    `no_stream` says why the images are not loaded.
    """
    origins = dict(zip((domain.name for domain in info.domains), info.origins, strict=False))
    files = [(row.split, row.domain, row.path) for row in rows]
    groups = [
        (row.split, origins.get(row.domain, row.domain), row.group) for row in rows if row.group
    ]
    return [
        _classes(info),
        _shared("No file is in two splits", "file", files),
        _shared("No group (patient, object) is in two splits", "group", groups),
        _pixels(stream, no_stream, info.name),
    ]


def _classes(info: StreamInfo) -> Check:
    title = "Every class is in every split"
    if not info.classes:
        return Check(title, None, "the record has no classes")
    missing = [
        f"{domain.name} has no {split} image of {info.classes[label]}"
        for domain in info.domains
        for split, counts in domain.counts.model_dump().items()
        if sum(counts)  # a domain that is only tested has no other splits
        for label, count in enumerate(counts)
        if not count
    ]
    return Check(title, not missing, "; ".join(missing) or "no class is missing")


def _shared(title: str, kind: str, named: Sequence[tuple[str, str, str]]) -> Check:
    """Look for names that are in two splits; `named` holds split, origin and name."""
    if not named:
        return Check(title, None, f"the stream has no list of {kind}s")
    splits: dict[tuple[str, str], set[str]] = defaultdict(set)
    for split, origin, name in named:
        splits[origin, name].add(split)
    shared = sorted(name for (_, name), found in splits.items() if len(found) > 1)
    if not shared:
        return Check(title, True, f"none of {plural(len(splits), kind)}")
    return Check(title, False, f"{len(shared):,} of {plural(len(splits), kind)}, e.g. {shared[0]}")


def _pixels(stream: Stream | None, no_stream: str, name: str) -> Check:
    title = "No two splits have an image with the same pixels"
    if stream is None:
        return Check(title, None, no_stream)
    splits = [(kind, split.images) for domain in stream.tested for kind, split in domain.splits()]
    if sum(images.nbytes for _, images in splits) > MAX_BYTES:
        return Check(title, None, f"too many images; run `sodap data check {name}`")
    found: dict[bytes, set[str]] = defaultdict(set)
    for kind, images in splits:
        for image in images.numpy():
            found[hashlib.blake2b(image.tobytes(), digest_size=16).digest()].add(kind)
    shared = sum(len(kinds) > 1 for kinds in found.values())
    count = sum(len(images) for _, images in splits)
    return Check(title, not shared, f"{shared or 'none'} of {plural(count, 'image')}")
