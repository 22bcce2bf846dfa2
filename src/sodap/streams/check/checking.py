"""`check_plan`: counts, flaws, twins and leaks of a planned stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from sodap.streams.check.duplicates import exact_copies, near_copies
from sodap.streams.check.fingerprints import Fingerprint, read_fingerprints
from sodap.streams.check.result import CheckResult, Flaw, Leak, Picture, Side, Twins
from sodap.streams.check.sheets import contact_sheet, pair_sheet
from sodap.streams.items import SPLITS, Item
from sodap.streams.plans import Plan
from sodap.streams.splits import relative

TINY = 64
"""Pixels of the shorter side; what is smaller shows little at 224 x 224."""

EXAMPLES = 20
"""Leaking images that are named; all are counted."""

Relation = tuple[Sequence[int], Sequence[int]]
"""Every image of the one list is a relative of every image of the other."""


def check_plan(plan: Plan, on_progress: Callable[[int, int], None] | None = None) -> CheckResult:
    """Read every file of a plan once and say all that is wrong with the stream.

    An image leaks where it, or one of its group, is on two sides of a split, in the same domain or
    in two: what one domain trains on must not be what another one tests on.
    """
    items: list[Item] = []
    pictures: list[Picture] = []
    here: list[int] = []
    for domain in plan.domains:
        for kind in SPLITS:
            for item in domain.in_split(kind):
                if domain.root is not None:
                    here.append(len(items))
                items.append(item)
                name = relative(item.path, domain.root)
                pictures.append(Picture(domain.name, kind, item.label, name))

    read = read_fingerprints([items[index].path for index in here], on_progress)
    prints = {i: found for i, found in zip(here, read, strict=True) if not isinstance(found, str)}
    exact, near = _relations(prints)
    groups = _groups(items, pictures)

    def of(index: int) -> Picture:
        return pictures[index]

    twins = [Twins("exact", tuple(map(of, one))) for one, _ in exact]
    twins += [Twins("near", (*map(of, one), *map(of, other))) for one, other in near]
    shown = [(one[0], other[0]) for one, other in near] + [(one[0], one[1]) for one, _ in exact]
    shown.sort(key=lambda pair: of(pair[0]).split == of(pair[1]).split)  # leaks first
    return CheckResult(
        plan.name,
        plan.classes,
        {(d.name, kind): d.counts(kind) for d in plan.domains for kind in SPLITS},
        plan.differences,
        tuple(_missing(plan)),
        tuple(
            leak
            for kind, relations in (("exact", exact), ("near", near), ("group", groups))
            for leak in _leaks(kind, relations, pictures)
        ),
        tuple(domain.name for domain in plan.domains if domain.learned),
        tuple(twins),
        tuple(
            Flaw(of(i).domain, of(i).path, what)
            for i, what in zip(here, read, strict=True)
            if isinstance(what, str)
        ),
        tuple(
            Flaw(of(i).domain, of(i).path, f"is only {each.shorter_side} pixels wide or high")
            for i, each in prints.items()
            if each.shorter_side is not None and each.shorter_side < TINY
        ),
        tuple(domain.name for domain in plan.domains if domain.root is None),
        tuple(d.name for d in plan.domains if all(item.group is None for item in d.items)),
        {
            domain.name: contact_sheet(domain, plan.classes)
            for domain in plan.domains
            if domain.root is not None
        },
        pair_sheet([(items[one].path, items[other].path) for one, other in shown]),
    )


def _relations(prints: dict[int, Fingerprint]) -> tuple[list[Relation], list[Relation]]:
    """Exact copies and near copies among the images that could be read."""
    order = list(prints)
    exact = [[order[k] for k in same] for same in exact_copies([prints[i].digest for i in order])]
    copies = {same[0]: same for same in exact}
    repeated = {index for same in exact for index in same[1:]}
    once = [index for index in order if index not in repeated]
    near = [
        (copies.get(once[a], [once[a]]), copies.get(once[b], [once[b]]))
        for a, b in near_copies([prints[index] for index in once])
    ]
    return [(same, same) for same in exact], list(near)


def _groups(items: Sequence[Item], pictures: Sequence[Picture]) -> list[Relation]:
    """Two data sets may both have a patient 1: groups count within a domain."""
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        if item.group is not None:
            members[pictures[index].domain, item.group].append(index)
    return [(same, same) for same in members.values() if len(same) > 1]


def _leaks(kind: str, relations: Iterable[Relation], pictures: Sequence[Picture]) -> Iterator[Leak]:
    """One leak for each pair of sides: which held images have a relative on the other side."""
    affected: dict[tuple[Side, Side], dict[int, int]] = defaultdict(dict)
    for one, other in relations:
        for left, first in _by_side(one, pictures).items():
            for right, second in _by_side(other, pictures).items():
                if left[1] != right[1]:
                    if SPLITS.index(left[1]) > SPLITS.index(right[1]):
                        affected[left, right].update(dict.fromkeys(first, second[0]))
                    else:
                        affected[right, left].update(dict.fromkeys(second, first[0]))
    total: dict[Side, int] = defaultdict(int)
    for picture in pictures:
        total[picture.side] += 1
    for (held, known), images in affected.items():
        examples = [(pictures[a].path, pictures[b].path) for a, b in sorted(images.items())]
        yield Leak(kind, held, known, len(images), total[held], tuple(examples[:EXAMPLES]))


def _by_side(images: Sequence[int], pictures: Sequence[Picture]) -> dict[Side, list[int]]:
    sides: dict[Side, list[int]] = defaultdict(list)
    for index in images:
        sides[pictures[index].side].append(index)
    return sides


def _missing(plan: Plan) -> Iterator[str]:
    for domain in plan.domains:
        present = domain.counts()
        for label in plan.classes:
            if not present[label]:
                yield f"{domain.name} has no image of {label}"
        for kind in SPLITS if domain.learned else ("test",):
            found = domain.counts(kind)
            for label in plan.classes:
                if present[label] and not found[label]:
                    yield f"{domain.name} has no {kind} image of {label}"
