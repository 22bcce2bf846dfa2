"""Plans: which images a stream will hold, and in which domain and split each of them is.

A plan is made from a protocol or from a user's own files, without decoding any image. It can be
saved, compared and checked before `sodap.streams.build.build_stream` decodes the images.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from sodap.errors import SodapError
from sodap.streams.augmentation import Augmentation
from sodap.streams.catalogue import find_source, locate, read_source
from sodap.streams.class_names import DoubtfulClass, doubtful_classes, parse_classes, similar
from sodap.streams.folds import Fold
from sodap.streams.items import SPLITS, Item, PlannedDomain, SkippedFile, Source, relative
from sodap.streams.names import printable
from sodap.streams.paper_lists import match_list, read_list_rows, read_paper_lists
from sodap.streams.protocols import EIGHT_ONE_ONE, DomainSpec, Protocol, find_protocol
from sodap.streams.sources.folder import read_folder
from sodap.streams.sources.table import read_table
from sodap.streams.splits import (
    Fractions,
    SplitRow,
    apply_splits,
    assign_splits,
    given_splits,
    undersample,
)

GroupNames = Literal["separate", "shared"]
"""Whether groups of the same name in two data sets are different patients or the same one."""


@dataclass(frozen=True)
class Plan:
    """The domains, images and splits of a stream before the images are decoded."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[PlannedDomain, ...]
    augmentation: Augmentation = field(default_factory=Augmentation)
    differences: tuple[str, ...] = ()
    """How the files differ from the complete data set, the paper or the saved splits."""
    grouped: bool = True
    """Whether all images of a group should be in one split."""
    confirmed: bool = True
    """Whether the user or the protocol has named the classes; else the images have."""
    skipped: tuple[SkippedFile, ...] = ()
    """Unreadable files that were left out."""

    def doubtful_classes(self) -> list[DoubtfulClass]:
        """Classes that look like mistakes and were not confirmed."""
        return [] if self.confirmed else doubtful_classes(self.domains)

    def rows(self) -> list[SplitRow]:
        """The rows of `splits.csv`."""
        return [
            SplitRow(
                domain.name,
                relative(item.path, domain.root),
                item.label,
                item.original,
                item.group or "",
                split,
            )
            for domain in self.domains
            for split in SPLITS
            for item in domain.in_split(split)
        ]

    def split_groups(self) -> list[str]:
        """Groups that are in two splits, in one domain or in two domains of one origin."""
        splits: dict[tuple[str, str], set[str]] = defaultdict(set)
        for domain in self.domains:
            for item, split in zip(domain.items, domain.splits, strict=True):
                if item.group is not None:
                    splits[domain.origin, item.group].add(split)
        return [group for (_, group), found in splits.items() if len(found) > 1]


# ------------------------------------------------------------------ protocols


def plan_protocol(
    protocol: Protocol | str,
    roots: Sequence[Path],
    seed: int = 0,
    *,
    lists: Path | None = None,
    saved: Sequence[SplitRow] | None = None,
    shared: bool = False,
    fold: Fold | None = None,
) -> Plan:
    """Apply a protocol to the data sets below `roots`.

    `lists` is a folder with the lists that the paper's authors published, `saved` are the splits
    of an earlier plan. Either one fixes which images a domain has, so nothing is undersampled.
    With `shared`, groups of the same name in two data sets are one group. `fold` chooses the test
    images of domains without given splits.
    """
    if isinstance(protocol, str):
        protocol = find_protocol(protocol)
    published = None if lists is None else _published_lists(protocol, lists)
    _check_saved([spec.name for spec in protocol.domains], saved)
    differences: list[str] = []
    items_of: dict[str, list[Item]] = {}
    domains = []
    for spec in protocol.domains:
        source = find_source(spec.source)
        if source.name not in items_of:
            items_of[source.name] = read_source(source.name, roots)
            differences += _incomplete(source, items_of[source.name])
        root = locate(source, roots)
        items = [item for item in items_of[source.name] if spec.part in (None, item.domain)]
        if not items:
            raise SodapError(f"{source.title} has no images of {spec.part} at {root}")
        domain = PlannedDomain(
            spec.name,
            root,
            tuple(items),
            learned=spec.name not in protocol.unseen,
            origin="" if shared else source.name,
        )
        if saved is not None:
            domain = _with_saved(domain, saved, differences)
        elif published is not None:
            matched = match_list(items, published[spec.listed or ""])
            differences += matched.differences(spec.name, "authors' lists")
            domain = replace(domain, items=tuple(matched.items), splits=tuple(matched.splits))
        if not domain.splits and spec.keep is not None:
            domain = replace(domain, items=tuple(undersample(items, spec.keep, seed, root=root)))
        if not domain.splits and not domain.learned:
            domain = replace(domain, splits=("test",) * len(domain.items))
        domains.append(domain)
    domains = _assign(domains, protocol.fractions, seed, protocol.grouped, differences, fold)
    for spec, domain in zip(protocol.domains, domains, strict=True):
        differences += _unexpected(protocol, spec, domain)
    return Plan(
        protocol.name,
        protocol.classes,
        tuple(domains),
        protocol.augmentation,
        tuple(differences),
        protocol.grouped,
    )


def _check_saved(domains: Sequence[str], saved: Sequence[SplitRow] | None) -> None:
    """Raise an error for the splits of another stream."""
    known = list(dict.fromkeys(row.domain for row in saved or ()))
    if saved is not None and not set(domains) & set(known):
        raise SodapError(
            f"the saved splits are those of another stream: they have the domains "
            f"{', '.join(known) or '(none)'}, not {', '.join(domains)}"
        )


def _with_saved(
    domain: PlannedDomain, saved: Sequence[SplitRow], differences: list[str]
) -> PlannedDomain:
    """The domain with its saved splits; a domain that the file does not know stays without."""
    if all(row.domain != domain.name for row in saved):
        differences.append(f"{domain.name}: not in the saved splits, so it is split now")
        return domain
    matched = apply_splits(domain.items, saved, domain.name, root=domain.root)
    differences += matched.differences(domain.name, "saved splits")
    return replace(domain, items=tuple(matched.items), splits=tuple(matched.splits))


def _assign(
    domains: list[PlannedDomain],
    fractions: Fractions,
    seed: int,
    grouped: bool,
    differences: list[str],
    fold: Fold | None,
) -> list[PlannedDomain]:
    """Assign the splits that are missing, and note where groups make them uneven."""
    assigned: dict[str, PlannedDomain] = {}
    for origin in dict.fromkeys(domain.origin for domain in domains):
        own = [domain for domain in domains if domain.origin == origin]
        done = assign_splits(own, fractions, seed, grouped=grouped, fold=fold)
        assigned |= {domain.name: domain for domain in done}
    if fold is not None:
        rest = fractions[0] + fractions[1]
        train, val = (part / rest * (fold.of - 1) for part in fractions[:2])
        fractions = (train, val, 1.0)
    for domain in domains:
        if not domain.splits:
            differences += _uneven(assigned[domain.name], fractions)
    return [assigned[domain.name] for domain in domains]


def _uneven(domain: PlannedDomain, fractions: Fractions) -> list[str]:
    """Val and test splits that are far from their share because groups are kept together."""
    total, found = len(domain.items), Counter(domain.splits)
    shares = {name: part / sum(fractions) for name, part in zip(SPLITS, fractions, strict=True)}
    return [
        f"{domain.name}: {found[name]} of {total} images are in {name} instead of "
        f"{shares[name] * total:.0f}, because groups are kept together"
        for name in ("val", "test")
        if abs(found[name] - shares[name] * total) > max(5, shares[name] * total / 2)
    ]


def _published_lists(protocol: Protocol, folder: Path) -> dict[str, dict[str, str]]:
    """The authors' lists, if they can be used with this protocol; they have no groups."""
    lists = read_paper_lists(folder)
    if protocol.grouped or any(spec.listed not in lists for spec in protocol.domains):
        raise SodapError(
            f"{protocol.name} makes its own splits; the authors' lists are for paper-dr only"
        )
    return lists


def plan_lists(lists: Path) -> Plan:
    """The plan that the authors' lists describe, without images, to check counts and groups."""
    protocol = find_protocol("paper-dr")
    rows = read_list_rows(lists)
    domains = []
    differences: list[str] = []
    for spec in protocol.domains:
        own = [row for row in rows if row.domain == spec.listed]
        items = tuple(Item(Path(r.path), r.label, r.original, r.group or None) for r in own)
        splits = tuple(row.split for row in own)
        domain = PlannedDomain(spec.name, None, items, splits, origin=spec.source)
        differences += _unexpected(protocol, spec, domain)
        domains.append(domain)
    return Plan(
        protocol.name,
        protocol.classes,
        tuple(domains),
        differences=tuple(differences),
        grouped=protocol.grouped,
    )


def _incomplete(source: Source, items: Iterable[Item]) -> list[str]:
    """How the files of a data set differ from the complete data set."""
    found = Counter(item.original for item in items)
    return [
        f"{source.name}: {found[label]} images of '{label}', the complete data set has {total}"
        for label, total in source.totals.items()
        if found[label] != total
    ]


def _unexpected(protocol: Protocol, spec: DomainSpec, domain: PlannedDomain) -> list[str]:
    """How a domain differs from the paper's table."""
    found = domain.counts(protocol.expected_split)
    where = f"{domain.name} ({protocol.expected_split})" if protocol.expected_split else domain.name
    return [
        f"{where}: {found[label]} images of {label}, the paper has {count}"
        for label, count in (spec.expected or {}).items()
        if found[label] != count
    ]


# ------------------------------------------------------------------ one data set


def plan_source(
    name: str,
    roots: Sequence[Path],
    seed: int = 0,
    *,
    saved: Sequence[SplitRow] | None = None,
    fold: Fold | None = None,
) -> Plan:
    """Plan a data set without a protocol: its domains in the order of their names, s2 before s10.

    As in a protocol, splits of the authors are ignored, and images are split by group.
    """
    source = find_source(name)
    items = [replace(item, split=None) for item in read_source(name, roots)]
    items.sort(key=lambda item: _numbers_as_numbers(item.domain or ""))
    root = locate(source, roots)
    plan = _plan_own(source.name, items, root, seed, saved, fold)
    return replace(
        plan,
        classes=source.classes,
        differences=(*_incomplete(source, items), *plan.differences),
        confirmed=True,
    )


def _numbers_as_numbers(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


# ------------------------------------------------------------------ a user's own files


def plan_folder(
    root: Path,
    seed: int = 0,
    *,
    saved: Sequence[SplitRow] | None = None,
    fold: Fold | None = None,
) -> Plan:
    """Plan a folder DOMAIN/CLASS/image; domains in the order of their names."""
    items = read_folder(root)
    if not items:
        raise SodapError(f"{root} holds no images in DOMAIN/CLASS/image")
    items.sort(key=lambda item: item.domain or "")
    return _plan_own(printable(root.resolve().name), items, root, seed, saved, fold)


def plan_table(
    file: Path,
    seed: int = 0,
    *,
    saved: Sequence[SplitRow] | None = None,
    fold: Fold | None = None,
) -> Plan:
    """Plan a table of images; domains in the order in which they first appear."""
    items = read_table(file)
    if not items:
        raise SodapError(f"{file} lists no images")
    return _plan_own(printable(file.stem), items, file.parent, seed, saved, fold)


def with_classes(plan: Plan, classes: str | Sequence[str] | None) -> Plan:
    """The plan with a fixed list of classes, which must include all classes of its images."""
    if classes is None:
        return plan
    names = parse_classes(classes) or plan.classes
    new = [label for label in plan.classes if label not in names]
    if new:
        typo = next((f", perhaps a typo for '{n}'" for n in names if similar(n, new[0])), "")
        raise SodapError(
            f"{plan.name} holds images of {', '.join(new)}{typo}, "
            f"which is not among the classes {', '.join(names)}"
        )
    return replace(plan, classes=tuple(names), confirmed=True)


def continued(
    plan: Plan, domains: Sequence[str], classes: Sequence[str], *, with_new: bool
) -> Plan:
    """The plan of a run that has begun with these domains and classes.

    Its domains keep their order. New ones come after them, or are left out.
    """
    own = {domain.name: domain for domain in plan.domains}
    chosen = [own[name] for name in domains if name in own]
    if with_new:
        chosen += [domain for domain in plan.domains if domain.name not in domains]
    labels = sorted({item.label for domain in chosen for item in domain.items})
    notes = [f"{name}: " for name in own.keys() - {domain.name for domain in chosen}]
    differences = tuple(n for n in plan.differences if not n.startswith(tuple(notes)))
    found = replace(plan, classes=tuple(labels), domains=tuple(chosen), differences=differences)
    return with_classes(found, classes)


def _plan_own(
    name: str,
    items: Sequence[Item],
    root: Path | None,
    seed: int,
    saved: Sequence[SplitRow] | None,
    fold: Fold | None,
) -> Plan:
    """Keep the user's splits; split domains that have none 8 : 1 : 1 by group."""
    parts: dict[str, list[Item]] = {}
    seen: set[Path] = set()
    for item in items:
        if item.path in seen:
            raise SodapError(f"{item.path} is listed twice; list every image once")
        seen.add(item.path)
        parts.setdefault(item.domain or name, []).append(item)
    _check_saved(list(parts), saved)
    domains = []
    differences: list[str] = []
    for part, own in parts.items():
        domain = PlannedDomain(part, root, tuple(own))
        if saved is not None:
            domain = _with_saved(domain, saved, differences)
        elif any(item.split is not None for item in own):
            if fold is not None:
                raise SodapError(
                    f"the images of '{part}' come with splits, which folds would replace; run it "
                    f"without folds, or remove its splits"
                )
            domain = replace(domain, splits=tuple(given_splits(own)))
        domains.append(domain)
    domains = _assign(domains, EIGHT_ONE_ONE, seed, True, differences, fold)
    classes = tuple(sorted({item.label for item in items}))
    return Plan(name, classes, tuple(domains), differences=tuple(differences), confirmed=False)
