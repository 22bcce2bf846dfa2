"""Plans: which images a stream will hold, and in which domain and split each of them is.

A plan is made from a protocol or from a user's own files, without decoding any image. It can be
saved, compared and checked before `sodap.streams.build.build_stream` decodes the images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.augmentation import Augmentation
from sodap.streams.catalogue import find_source, locate, read_source
from sodap.streams.items import SPLITS, Item, Source
from sodap.streams.names import printable
from sodap.streams.paper_lists import match_list, read_list_rows, read_paper_lists
from sodap.streams.protocols import EIGHT_ONE_ONE, DomainSpec, Protocol, find_protocol
from sodap.streams.sources.folder import read_folder
from sodap.streams.sources.table import read_table
from sodap.streams.splits import (
    SplitRow,
    apply_splits,
    assign_splits,
    given_splits,
    relative,
    undersample,
)


@dataclass(frozen=True)
class PlannedDomain:
    """The items of a domain and the split of each item."""

    name: str
    root: Path | None
    """The folder that paths are relative to; None if there are only lists and no images."""
    items: tuple[Item, ...]
    splits: tuple[str, ...]
    learned: bool = True

    def in_split(self, split: str) -> list[Item]:
        """The items of a split, sorted by file name."""
        chosen = [item for item, own in zip(self.items, self.splits, strict=True) if own == split]
        return sorted(chosen, key=lambda item: relative(item.path, self.root))

    def counts(self, split: str | None = None) -> Counter[str]:
        """Number of images of each class, in one split or in all."""
        pairs = zip(self.items, self.splits, strict=True)
        return Counter(item.label for item, own in pairs if split in (None, own))


@dataclass(frozen=True)
class Plan:
    """The domains, images and splits of a stream before the images are decoded."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[PlannedDomain, ...]
    augmentation: Augmentation = field(default_factory=Augmentation)
    differences: tuple[str, ...] = ()
    """How the files differ from the complete data set, the paper or the saved splits."""

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


# ------------------------------------------------------------------ protocols


def plan_protocol(
    protocol: Protocol | str,
    roots: Sequence[Path],
    seed: int = 0,
    *,
    lists: Path | None = None,
    saved: Sequence[SplitRow] | None = None,
) -> Plan:
    """Apply a protocol to the data sets below `roots`.

    `lists` is a folder with the lists that the paper's authors published, `saved` are the splits
    of an earlier plan. Either one fixes which images a domain has, so nothing is undersampled.
    """
    if isinstance(protocol, str):
        protocol = find_protocol(protocol)
    published = None if lists is None else _published_lists(protocol, lists)
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
        if saved is not None:
            matched = apply_splits(items, saved, spec.name, root=root)
            differences += matched.differences(spec.name, "saved splits")
            items, splits = matched.items, matched.splits
        elif published is not None:
            matched = match_list(items, published[spec.listed or ""])
            differences += matched.differences(spec.name, "authors' lists")
            items, splits = matched.items, matched.splits
        else:
            items, splits = _draw(protocol, spec, items, seed, root)
        learned = spec.name not in protocol.unseen
        domain = PlannedDomain(spec.name, root, tuple(items), tuple(splits), learned)
        differences += _unexpected(protocol, spec, domain)
        domains.append(domain)
    return Plan(
        protocol.name,
        protocol.classes,
        tuple(domains),
        protocol.augmentation,
        tuple(differences),
    )


def _published_lists(protocol: Protocol, folder: Path) -> dict[str, dict[str, str]]:
    """The authors' lists, if they can be used with this protocol; they have no groups."""
    lists = read_paper_lists(folder)
    if protocol.grouped or any(spec.listed not in lists for spec in protocol.domains):
        raise SodapError(
            f"{protocol.name} makes its own splits; the authors' lists are for paper-dr only"
        )
    return lists


def _draw(
    protocol: Protocol, spec: DomainSpec, items: list[Item], seed: int, root: Path | None
) -> tuple[list[Item], list[str]]:
    """Undersample a domain as its protocol says and assign splits."""
    if spec.keep is not None:
        items = undersample(items, spec.keep, seed, root=root)
    if spec.name in protocol.unseen:
        return items, ["test"] * len(items)
    splits = assign_splits(items, protocol.fractions, seed, grouped=protocol.grouped, root=root)
    return items, splits


def plan_lists(lists: Path) -> Plan:
    """The plan that the authors' lists describe, without images, to check counts and groups."""
    protocol = find_protocol("paper-dr")
    rows = read_list_rows(lists)
    domains = []
    differences: list[str] = []
    for spec in protocol.domains:
        own = [row for row in rows if row.domain == spec.listed]
        items = tuple(Item(Path(r.path), r.label, r.original, r.group or None) for r in own)
        domain = PlannedDomain(spec.name, None, items, tuple(row.split for row in own))
        differences += _unexpected(protocol, spec, domain)
        domains.append(domain)
    return Plan(protocol.name, protocol.classes, tuple(domains), differences=tuple(differences))


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


# ------------------------------------------------------------------ a user's own files


def plan_folder(root: Path, seed: int = 0, *, saved: Sequence[SplitRow] | None = None) -> Plan:
    """Plan a folder DOMAIN/CLASS/image; domains in the order of their names."""
    items = read_folder(root)
    if not items:
        raise SodapError(f"{root} holds no images in DOMAIN/CLASS/image")
    items.sort(key=lambda item: item.domain or "")
    return _plan_own(printable(root.resolve().name), items, root, seed, saved)


def plan_table(file: Path, seed: int = 0, *, saved: Sequence[SplitRow] | None = None) -> Plan:
    """Plan a table of images; domains in the order in which they first appear."""
    items = read_table(file)
    if not items:
        raise SodapError(f"{file} lists no images")
    return _plan_own(printable(file.stem), items, file.parent, seed, saved)


def with_classes(plan: Plan, classes: Sequence[str] | None) -> Plan:
    """The plan with a fixed list of classes, which must include all classes of its images."""
    if classes is None:
        return plan
    new = [label for label in plan.classes if label not in classes]
    if new:
        raise SodapError(
            f"{plan.name} holds images of {', '.join(new)}, "
            f"which is not among the classes {', '.join(classes)}"
        )
    return replace(plan, classes=tuple(classes))


def _plan_own(
    name: str, items: Sequence[Item], root: Path, seed: int, saved: Sequence[SplitRow] | None
) -> Plan:
    """Keep the user's splits; split domains that have none 8 : 1 : 1 by group."""
    parts: dict[str, list[Item]] = {}
    seen: set[Path] = set()
    for item in items:
        if item.path in seen:
            raise SodapError(f"{item.path} is listed twice; list every image once")
        seen.add(item.path)
        parts.setdefault(item.domain or name, []).append(item)
    domains = []
    differences: list[str] = []
    for part, own in parts.items():
        if saved is not None:
            matched = apply_splits(own, saved, part, root=root)
            differences += matched.differences(part, "saved splits")
            own, splits = matched.items, matched.splits
        elif any(item.split is not None for item in own):
            splits = given_splits(own)
        else:
            splits = assign_splits(own, EIGHT_ONE_ONE, seed, grouped=True, root=root)
        domains.append(PlannedDomain(part, root, tuple(own), tuple(splits)))
    classes = tuple(sorted({item.label for item in items}))
    return Plan(name, classes, tuple(domains), differences=tuple(differences))
