"""Unreadable image files: found before a stream is built, left out, and listed in a file."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

from sodap.errors import UnreadableImageError
from sodap.formats import plural
from sodap.storage import write_bytes
from sodap.streams.grey import NO_RANGES, GreyRanges
from sodap.streams.images import decode_image, measure_ranges, read_file
from sodap.streams.items import PlannedDomain, SkippedFile, relative
from sodap.streams.names import printable
from sodap.streams.plans import Plan

SKIPPED = "skipped.csv"
"""Name of the list of files that a run or a check has left out."""

_SIDE = 16  # small, because the images are thrown away


def without_unreadable(
    plan: Plan,
    ranges: GreyRanges = NO_RANGES,
    on_progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """The plan without the files that cannot be read, which are in its `skipped`.

    The other images keep their splits.
    """
    learned = [domain for domain in plan.domains if domain.learned]
    trained = [item.path for domain in learned for item in domain.in_split("train")]
    ranges = ranges.with_missing(measure_ranges(trained))
    paths = [item.path for domain in plan.domains for item in domain.items]
    reasons: dict[Path, str] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(partial(_problem, ranges=ranges), paths)
        for done, (path, problem) in enumerate(zip(paths, found, strict=True), start=1):
            if problem is not None:
                reasons[path] = problem
            if on_progress is not None:
                on_progress(done, len(paths))
    skipped = tuple(
        SkippedFile(domain.name, relative(item.path, domain.root), reasons[item.path])
        for domain in plan.domains
        for item in domain.items
        if item.path in reasons
    )
    counts = Counter(each.domain for each in skipped)
    notes = [
        f"{name}: {plural(count, 'unreadable file')} left out" for name, count in counts.items()
    ]
    return replace(
        plan,
        domains=tuple(_without(domain, reasons) for domain in plan.domains),
        differences=(*plan.differences, *notes),
        skipped=skipped,
    )


def _problem(path: Path, ranges: GreyRanges) -> str | None:
    """Why a file cannot be used; None if it can."""
    try:
        decode_image(read_file(path), path, _SIDE, ranges)
    except UnreadableImageError as error:
        return str(error).removeprefix(f"{printable(path)} ")
    return None


def _without(domain: PlannedDomain, paths: Iterable[Path]) -> PlannedDomain:
    left_out = set(paths)
    kept = [
        pair
        for pair in zip(domain.items, domain.splits, strict=True)
        if pair[0].path not in left_out
    ]
    return replace(
        domain,
        items=tuple(item for item, _ in kept),
        splits=tuple(split for _, split in kept),
    )


def write_skipped(path: Path, skipped: Sequence[SkippedFile]) -> None:
    """Add files to a list of skipped ones (CSV: domain, path, reason)."""
    rows: list[tuple[str, ...]] = []
    with suppress(FileNotFoundError):
        text = path.read_bytes().decode(errors="surrogateescape")
        rows = [tuple(row) for row in csv.reader(io.StringIO(text, newline=""))][1:]
    rows = list(dict.fromkeys([*rows, *map(astuple, skipped)]))
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("domain", "path", "reason"), *rows])
    write_bytes(path, out.getvalue().encode(errors="surrogateescape"))
