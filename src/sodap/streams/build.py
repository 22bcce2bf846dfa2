"""From a plan to a stream: decode the images of a plan, or reuse the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from sodap.errors import SodapError, UnreadableImageError
from sodap.streams.cache import are_cached, cached_images, cached_ranges
from sodap.streams.grey import NO_RANGES, GreyRanges
from sodap.streams.items import SPLITS, PlannedDomain
from sodap.streams.plans import Plan
from sodap.streams.stream import Domain, Split, Stream
from sodap.streams.unreadable import without_unreadable


def build_stream(
    plan: Plan,
    image_size: int,
    on_progress: Callable[[int, int], None] | None = None,
    ranges: GreyRanges | None = None,
    *,
    skip_unreadable: bool = False,
) -> Stream:
    """Decode the images of a plan, or map them into memory if they were decoded before.

    A domain's cache holds train, val and test in this order, so each split `[N, 3, S, S]` is a
    slice of it and nothing is copied. `ranges` are those of an earlier stream or of a model; kinds
    of images that it does not know are measured on the training images. With `skip_unreadable`,
    files that cannot be read are left out.
    """
    for domain in plan.domains:
        if domain.root is None:
            raise SodapError(f"there are no images of {domain.name} here, only lists of them")
    if skip_unreadable and not _all_cached(plan, image_size):
        plan = without_unreadable(plan, ranges or NO_RANGES, on_progress)
    try:
        return _build(plan, image_size, ranges or NO_RANGES, on_progress)
    except UnreadableImageError as error:
        raise UnreadableImageError(
            f"{error}; `sodap data check` lists all such files, and skip_unreadable=true leaves "
            f"them out"
        ) from error


def _build(
    plan: Plan,
    image_size: int,
    known: GreyRanges,
    on_progress: Callable[[int, int], None] | None,
) -> Stream:
    measured = _measured(plan, image_size, known, on_progress)
    ranges = known.with_missing(measured)

    def build(domain: PlannedDomain) -> Domain:
        return _build_domain(domain, plan.classes, image_size, ranges, on_progress)

    return Stream(
        plan.name,
        plan.classes,
        tuple(build(domain) for domain in plan.domains if domain.learned),
        tuple(build(domain) for domain in plan.domains if not domain.learned),
        plan.augmentation,
        tuple(plan.rows()),
        (*plan.differences, *ranges.exceeded_by(measured)),
        ranges,
        plan.skipped,
    )


def _measured(
    plan: Plan,
    image_size: int,
    known: GreyRanges,
    on_progress: Callable[[int, int], None] | None,
) -> GreyRanges:
    """The ranges of the training images."""
    if known == NO_RANGES and _all_cached(plan, image_size):
        return NO_RANGES  # no image needs one
    learned = [domain for domain in plan.domains if domain.learned]
    paths = [item.path for domain in learned for item in domain.in_split("train")]
    return cached_ranges(paths, on_progress)


def _all_cached(plan: Plan, image_size: int) -> bool:
    """Whether all images are cached, and so can be read and need no ranges."""
    try:
        return all(are_cached(_paths(domain), image_size) for domain in plan.domains)
    except UnreadableImageError:  # a file is gone
        return False


def _paths(domain: PlannedDomain) -> list[Path]:
    return [item.path for split in SPLITS for item in domain.in_split(split)]


def _build_domain(
    domain: PlannedDomain,
    classes: tuple[str, ...],
    image_size: int,
    ranges: GreyRanges,
    on_progress: Callable[[int, int], None] | None,
) -> Domain:
    items = [domain.in_split(split) for split in SPLITS]
    images = cached_images(_paths(domain), image_size, ranges=ranges, on_progress=on_progress)
    numbers = {label: number for number, label in enumerate(classes)}
    splits, start = [], 0
    for part in items:
        labels = torch.tensor([numbers[item.label] for item in part], dtype=torch.int64)
        splits.append(Split(images[start : start + len(part)], labels))
        start += len(part)
    train, val, test = splits
    return Domain(domain.name, train, val, test, classes, domain.origin, ranges)
