"""From a plan to a stream: decode the images of a plan, or reuse the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sodap.errors import SodapError
from sodap.streams.cache import cached_images
from sodap.streams.items import SPLITS, PlannedDomain
from sodap.streams.plans import Plan
from sodap.streams.stream import Domain, Split, Stream


def build_stream(
    plan: Plan, image_size: int, on_progress: Callable[[int, int], None] | None = None
) -> Stream:
    """Decode the images of a plan, or map them into memory if they were decoded before.

    A domain's cache holds train, val and test in this order, so each split `[N, 3, S, S]` is a
    slice of it and nothing is copied.
    """

    def build(domain: PlannedDomain) -> Domain:
        return _build_domain(domain, plan.classes, image_size, on_progress)

    return Stream(
        plan.name,
        plan.classes,
        tuple(build(domain) for domain in plan.domains if domain.learned),
        tuple(build(domain) for domain in plan.domains if not domain.learned),
        plan.augmentation,
        tuple(plan.rows()),
        plan.differences,
    )


def _build_domain(
    domain: PlannedDomain,
    classes: tuple[str, ...],
    image_size: int,
    on_progress: Callable[[int, int], None] | None,
) -> Domain:
    if domain.root is None:
        raise SodapError(f"there are no images of {domain.name} here, only lists of them")
    items = [domain.in_split(split) for split in SPLITS]
    images = cached_images(
        [item.path for part in items for item in part], image_size, on_progress=on_progress
    )
    numbers = {label: number for number, label in enumerate(classes)}
    splits, start = [], 0
    for part in items:
        labels = torch.tensor([numbers[item.label] for item in part], dtype=torch.int64)
        splits.append(Split(images[start : start + len(part)], labels))
        start += len(part)
    train, val, test = splits
    return Domain(domain.name, train, val, test, classes, domain.origin)
