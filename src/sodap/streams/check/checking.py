"""`check_plan`: counts, unreadable files, duplicates and leaks of a planned stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, permutations

from sodap.formats import plural
from sodap.streams.check.duplicates import exact_copies, near_copies
from sodap.streams.check.fingerprints import Fingerprint, read_fingerprints
from sodap.streams.check.result import (
    ACROSS,
    WITHIN,
    CheckResult,
    DomainSplit,
    Duplicates,
    Flaw,
    ImageRef,
    Leak,
)
from sodap.streams.check.sheets import contact_sheet, pair_sheet
from sodap.streams.conversions import CONVERSIONS
from sodap.streams.images import measure_ranges
from sodap.streams.items import SPLITS, Item, relative
from sodap.streams.plans import Plan

TINY = 64
"""Images whose shorter side has fewer pixels show little at 224 x 224."""

EXAMPLES = 20
"""Number of examples that are listed for each leak."""

Relation = tuple[Sequence[int], Sequence[int]]
"""Two lists of images; each image of one is related to each image of the other."""

Affected = dict[tuple[DomainSplit, DomainSplit], dict[int, int]]
"""A val or test split and another split -> images of the first, each with one of the other."""


def check_plan(plan: Plan, on_progress: Callable[[int, int], None] | None = None) -> CheckResult:
    """Read every file of a plan once and report all problems with the stream.

    An image leaks if it or another image of its group is in two splits, in the same domain or in
    two domains: what one domain trains on must not be tested in another. Groups of the same name
    in two data sets count as different groups, unless the plan says otherwise; they are listed as
    questions.
    """
    items: list[Item] = []
    images: list[ImageRef] = []
    on_disk: list[int] = []
    for domain in plan.domains:
        for split in SPLITS:
            for item in domain.in_split(split):
                if domain.root is not None:
                    on_disk.append(len(items))
                items.append(item)
                path = relative(item.path, domain.root)
                images.append(ImageRef(domain.name, split, item.label, path))

    trained = [items[index].path for index in on_disk if images[index].split == "train"]
    ranges = measure_ranges(trained)
    read = read_fingerprints([items[index].path for index in on_disk], on_progress, ranges)
    read_at = dict(zip(on_disk, read, strict=True))
    fingerprints = {i: found for i, found in read_at.items() if isinstance(found, Fingerprint)}
    exact, near = _copies(fingerprints)
    groups = _groups(plan, items, images)
    affected = {
        kind: _affected(relations, images)
        for kind, relations in (("exact", exact), ("near", near), ("group", groups))
    }
    pairs = [(one[0], other[0]) for one, other in near] + [(one[0], one[1]) for one, _ in exact]
    pairs.sort(key=lambda pair: images[pair[0]].split == images[pair[1]].split)  # leaks first

    def refs(indices: Iterable[int]) -> tuple[ImageRef, ...]:
        return tuple(images[index] for index in indices)

    def flaw(index: int, what: str) -> Flaw:
        return Flaw(images[index].domain, images[index].path, what)

    return CheckResult(
        name=plan.name,
        classes=plan.classes,
        counts={(d.name, split): d.counts(split) for d in plan.domains for split in SPLITS},
        differences=plan.differences,
        missing=tuple(_missing(plan)),
        leaks=tuple(leak for kind in affected for leak in _leaks(kind, affected[kind], images)),
        leaked=_count_leaked(affected.values()),
        leaked_groups=_count_leaked_groups(groups, images),
        questions=tuple(_same_names(plan)),
        doubtful=tuple(map(str, plan.doubtful_classes())),
        learned=tuple(domain.name for domain in plan.domains if domain.learned),
        duplicates=(
            *(Duplicates("exact", refs(one)) for one, _ in exact),
            *(Duplicates("near", refs([*one, *other])) for one, other in near),
        ),
        unreadable=tuple(flaw(i, found) for i, found in read_at.items() if isinstance(found, str)),
        tiny=tuple(
            flaw(i, f"is only {found.shorter_side} pixels wide or high")
            for i, found in fingerprints.items()
            if found.shorter_side is not None and found.shorter_side < TINY
        ),
        skipped=plan.skipped,
        conversions=_conversions(images, fingerprints),
        ranges=ranges,
        without_images=tuple(domain.name for domain in plan.domains if domain.root is None),
        ungrouped=tuple(d.name for d in plan.domains if all(i.group is None for i in d.items)),
        sheets={
            d.name: contact_sheet(d, plan.classes, ranges)
            for d in plan.domains
            if d.root is not None
        },
        pairs=pair_sheet([(items[one].path, items[other].path) for one, other in pairs], ranges),
    )


def _conversions(
    images: Sequence[ImageRef], fingerprints: dict[int, Fingerprint]
) -> dict[str, Counter[str]]:
    """Conversion -> domain -> number of its images."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for index, fingerprint in fingerprints.items():
        for kind in fingerprint.conversions:
            found[kind][images[index].domain] += 1
    return {kind: found[kind] for kind in CONVERSIONS if kind in found}


def _copies(fingerprints: dict[int, Fingerprint]) -> tuple[list[Relation], list[Relation]]:
    """Exact copies and near copies among the readable images."""
    order = list(fingerprints)
    exact = [
        [order[k] for k in same]
        for same in exact_copies([fingerprints[index].digest for index in order])
    ]
    copies = {same[0]: same for same in exact}
    repeated = {index for same in exact for index in same[1:]}
    once = [index for index in order if index not in repeated]
    near: list[Relation] = [
        (copies.get(once[a], [once[a]]), copies.get(once[b], [once[b]]))
        for a, b in near_copies([fingerprints[index] for index in once])
    ]
    return [(same, same) for same in exact], near


def _groups(plan: Plan, items: Sequence[Item], images: Sequence[ImageRef]) -> list[Relation]:
    """Images of the same group, in all domains of its origin."""
    origins = {domain.name: domain.origin for domain in plan.domains}
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        if item.group is not None:
            members[origins[images[index].domain], item.group].append(index)
    return [(same, same) for same in members.values() if len(same) > 1]


def _same_names(plan: Plan) -> Iterator[str]:
    """Groups of the same name in data sets of different origin, one sentence for each pair."""
    names: dict[str, set[str]] = defaultdict(set)
    for domain in plan.domains:
        names[domain.origin] |= {item.group for item in domain.items if item.group is not None}
    for one, other in combinations(names, 2):
        if common := sorted(names[one] & names[other]):
            yield (
                f"are the {plural(len(common), 'group')} with the same name in {one} and {other} "
                f"(such as '{common[0]}') the same patients? Here they count as different ones; "
                f"if they are the same, use --groups shared here and groups=shared in a run"
            )


def _affected(relations: Iterable[Relation], images: Sequence[ImageRef]) -> Affected:
    """Related images in two splits."""
    affected: Affected = defaultdict(dict)
    for one, other in relations:
        for left, first in _by_split(one, images).items():
            for right, second in _by_split(other, images).items():
                if left[1] != right[1]:
                    if SPLITS.index(left[1]) > SPLITS.index(right[1]):
                        affected[left, right].update(dict.fromkeys(first, second[0]))
                    else:
                        affected[right, left].update(dict.fromkeys(second, first[0]))
    return affected


def _leaks(kind: str, affected: Affected, images: Sequence[ImageRef]) -> Iterator[Leak]:
    """One leak for each pair of splits with related images."""
    total: dict[DomainSplit, int] = defaultdict(int)
    for image in images:
        total[image.domain_split] += 1
    for (held, other_split), pairs in affected.items():
        examples = [(images[a].path, images[b].path) for a, b in sorted(pairs.items())]
        yield Leak(kind, held, other_split, len(pairs), total[held], tuple(examples[:EXAMPLES]))


def _count_leaked(affected: Iterable[Affected]) -> dict[str, int]:
    """Number of val and test images that leak within a domain and across domains."""
    found: dict[str, set[int]] = {WITHIN: set(), ACROSS: set()}
    for each in affected:
        for (held, other), pairs in each.items():
            found[WITHIN if held[0] == other[0] else ACROSS] |= pairs.keys()
    return {place: len(numbers) for place, numbers in found.items()}


def _count_leaked_groups(groups: Iterable[Relation], images: Sequence[ImageRef]) -> dict[str, int]:
    """Number of groups in two splits of one domain, and in different splits of two domains."""
    found = {WITHIN: 0, ACROSS: 0}
    for members, _ in groups:
        pairs = list(permutations({images[index].domain_split for index in members}, 2))
        found[WITHIN] += any(a[0] == b[0] for a, b in pairs)
        found[ACROSS] += any(a[0] != b[0] and a[1] != b[1] for a, b in pairs)
    return found


def _by_split(indices: Sequence[int], images: Sequence[ImageRef]) -> dict[DomainSplit, list[int]]:
    splits: dict[DomainSplit, list[int]] = defaultdict(list)
    for index in indices:
        splits[images[index].domain_split].append(index)
    return splits


def _missing(plan: Plan) -> Iterator[str]:
    """Classes without images, one sentence each."""
    for domain in plan.domains:
        present = domain.counts()
        for label in plan.classes:
            if not present[label]:
                yield f"{domain.name} has no image of {label}"
        for split in SPLITS if domain.learned else ("test",):
            found = domain.counts(split)
            for label in plan.classes:
                if present[label] and not found[label]:
                    yield f"{domain.name} has no {split} image of {label}"
