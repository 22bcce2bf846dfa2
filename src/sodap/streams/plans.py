"""What a stream will be made of: a protocol, or a user's own files, applied to what is here.

`plan` decides which image is in which domain and on which side of the split, without decoding one;
`build_stream` decodes what was planned. In between a plan can be saved, compared and checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from sodap.errors import SodapError
from sodap.streams.augment import Augmentation
from sodap.streams.cache import cached_images
from sodap.streams.catalogue import find_source, locate, read_source
from sodap.streams.items import Item, Source
from sodap.streams.names import printable
from sodap.streams.protocols import EIGHT_ONE_ONE, DomainSpec, Protocol, find_protocol
from sodap.streams.sources.folder import read_folder
from sodap.streams.sources.table import read_table
from sodap.streams.splits import (
    SPLITS,
    Matched,
    SplitRow,
    apply_splits,
    assign_splits,
    given_splits,
    match_list,
    read_list_rows,
    read_paper_lists,
    relative,
    undersample,
)
from sodap.streams.stream import Domain, Split, Stream


@dataclass(frozen=True)
class PlannedDomain:
    """A domain's items and their splits, side by side."""

    name: str
    root: Path | None
    """What the paths are relative to; None where only lists are known and no image is here."""
    items: tuple[Item, ...]
    splits: tuple[str, ...]
    learned: bool = True

    def of(self, kind: str) -> list[Item]:
        """The items of a split, by file name."""
        chosen = [i for i, name in zip(self.items, self.splits, strict=True) if name == kind]
        return sorted(chosen, key=lambda item: relative(item.path, self.root))

    def counts(self, kind: str | None = None) -> Counter[str]:
        """Images of each class, in one split or in all."""
        pairs = zip(self.items, self.splits, strict=True)
        return Counter(item.label for item, name in pairs if kind in (None, name))


@dataclass(frozen=True)
class Plan:
    """What a stream will be made of."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[PlannedDomain, ...]
    augmentation: Augmentation = field(default_factory=Augmentation)
    differences: tuple[str, ...] = ()
    """Where the files here are not what a paper or a data set promises; one sentence each."""

    def rows(self) -> list[SplitRow]:
        """The splits as they are saved."""
        return [
            SplitRow(
                domain.name,
                relative(item.path, domain.root),
                item.label,
                item.original,
                item.group or "",
                kind,
            )
            for domain in self.domains
            for kind in SPLITS
            for item in domain.of(kind)
        ]


def plan(
    protocol: Protocol | str,
    roots: Sequence[Path],
    seed: int = 0,
    *,
    lists: Path | None = None,
    saved: Sequence[SplitRow] | None = None,
) -> Plan:
    """Apply a protocol to the data sets below `roots`.

    `lists` is a folder with the lists that the paper's authors published. `saved` are the splits
    of an earlier plan. Both say which images belong to a domain: then none are drawn.
    """
    if isinstance(protocol, str):
        protocol = find_protocol(protocol)
    published = {} if lists is None else read_paper_lists(lists)
    ready = all(domain.listed in published for domain in protocol.domains)
    if lists is not None and (protocol.grouped or not ready):  # the lists know no groups
        raise SodapError(f"{protocol.name} makes its own splits; lists are for paper-dr alone")
    differences: list[str] = []
    read: dict[str, list[Item]] = {}
    domains = []
    for wanted in protocol.domains:
        source = find_source(wanted.source)
        if source.name not in read:
            read[source.name] = read_source(source.name, roots)
            differences += _incomplete(source, read[source.name])
        root = locate(source, roots)
        items = [i for i in read[source.name] if wanted.part in (None, i.domain)]
        if not items:
            raise SodapError(f"{source.title} has no images of {wanted.part} at {root}")
        if saved is not None or wanted.listed in published:
            if saved is not None:
                matched, by = apply_splits(items, saved, wanted.name, root=root), "saved splits"
            else:
                matched, by = match_list(items, published[wanted.listed or ""]), "authors' lists"
            items, kinds = matched.items, matched.splits
            differences += _unmatched(wanted.name, matched, by)
        else:
            if wanted.keep is not None:
                items = undersample(items, wanted.keep, seed, root=root)
            if wanted.name in protocol.unseen:
                kinds = ["test"] * len(items)
            else:
                kinds = assign_splits(
                    items, protocol.fractions, seed, grouped=protocol.grouped, root=root
                )
        domain = PlannedDomain(
            wanted.name, root, tuple(items), tuple(kinds), wanted.name not in protocol.unseen
        )
        differences += _unexpected(protocol, wanted, domain)
        domains.append(domain)
    return Plan(
        protocol.name,
        protocol.classes,
        tuple(domains),
        protocol.augmentation,
        tuple(differences),
    )


def plan_lists(lists: Path) -> Plan:
    """The authors' lists alone, where none of their images is: for counting and for groups."""
    protocol = find_protocol("paper-dr")
    rows = read_list_rows(lists)
    domains = []
    differences: list[str] = []
    for wanted in protocol.domains:
        own = [row for row in rows if row.domain == wanted.listed]
        items = tuple(Item(Path(r.path), r.label, r.original, r.group or None) for r in own)
        domain = PlannedDomain(wanted.name, None, items, tuple(row.split for row in own))
        differences += _unexpected(protocol, wanted, domain)
        domains.append(domain)
    return Plan(protocol.name, protocol.classes, tuple(domains), differences=tuple(differences))


def plan_folder(root: Path, seed: int = 0, *, saved: Sequence[SplitRow] | None = None) -> Plan:
    """A user's folders: domains in the order of their names."""
    items = read_folder(root)
    if not items:
        raise SodapError(f"{root} holds no images in DOMAIN/CLASS/image")
    items.sort(key=lambda item: item.domain or "")
    return _plan_own(printable(root.resolve().name), items, root, seed, saved)


def plan_table(file: Path, seed: int = 0, *, saved: Sequence[SplitRow] | None = None) -> Plan:
    """A user's table: domains in the order in which they first appear."""
    items = read_table(file)
    if not items:
        raise SodapError(f"{file} lists no images")
    return _plan_own(printable(file.stem), items, file.parent, seed, saved)


def over_classes(plan: Plan, classes: Sequence[str] | None) -> Plan:
    """The plan over classes that were fixed earlier: some may be absent, none may be new."""
    if classes is None:
        return plan
    new = [label for label in plan.classes if label not in classes]
    if new:
        raise SodapError(
            f"{plan.name} holds images of {', '.join(new)}, "
            f"which is none of the classes {', '.join(classes)}"
        )
    return replace(plan, classes=tuple(classes))


def _plan_own(
    name: str, items: Sequence[Item], root: Path, seed: int, saved: Sequence[SplitRow] | None
) -> Plan:
    """Splits that the user gives are kept; a domain without any is dealt 8 : 1 : 1 by groups."""
    parts: dict[str, list[Item]] = {}
    seen: set[Path] = set()
    for item in items:
        if item.path in seen:
            raise SodapError(f"{item.path} is listed twice; name every image once")
        seen.add(item.path)
        parts.setdefault(item.domain or name, []).append(item)
    domains = []
    differences: list[str] = []
    for part, own in parts.items():
        if saved is not None:
            matched = apply_splits(own, saved, part, root=root)
            own, kinds = matched.items, matched.splits
            differences += _unmatched(part, matched, "saved splits")
        elif any(item.split is not None for item in own):
            kinds = given_splits(own)
        else:
            kinds = assign_splits(own, EIGHT_ONE_ONE, seed, grouped=True, root=root)
        domains.append(PlannedDomain(part, root, tuple(own), tuple(kinds)))
    classes = tuple(sorted({item.label for item in items}))
    return Plan(name, classes, tuple(domains), differences=tuple(differences))


def _incomplete(source: Source, items: Iterable[Item]) -> list[str]:
    """How a data set differs from the complete one."""
    found = Counter(item.original for item in items)
    return [
        f"{source.name}: {found[label]} images of '{label}', the complete data set has {total}"
        for label, total in source.totals.items()
        if found[label] != total
    ]


def _unmatched(domain: str, matched: Matched, by: str) -> list[str]:
    """How the files here differ from a list of splits."""
    sentences = []
    if matched.missing:
        sentences.append(f"{domain}: {matched.missing} images of the {by} are not here")
    if matched.relabelled:
        sentences.append(f"{domain}: {matched.relabelled} images have another class in the {by}")
    return sentences


def _unexpected(protocol: Protocol, wanted: DomainSpec, domain: PlannedDomain) -> list[str]:
    """How a domain differs from the paper's table."""
    found = domain.counts(protocol.expected_split)
    where = f"{domain.name} ({protocol.expected_split})" if protocol.expected_split else domain.name
    return [
        f"{where}: {found[label]} images of {label}, the paper has {count}"
        for label, count in (wanted.expected or {}).items()
        if found[label] != count
    ]


# ------------------------------------------------------------------ streams


def build_stream(
    plan: Plan, image_size: int, on_progress: Callable[[int, int], None] | None = None
) -> Stream:
    """Decode a plan's images, once: later builds map the decoded files into memory.

    A domain's files are listed train, val, test, so that each split `[N, 3, S, S]` is a slice of
    the domain's cache and nothing is copied.
    """
    numbers = {name: index for index, name in enumerate(plan.classes)}

    def build(domain: PlannedDomain) -> Domain:
        if domain.root is None:
            raise SodapError(f"there are no images of {domain.name} here, only lists of them")
        parts = {kind: domain.of(kind) for kind in SPLITS}
        paths = [item.path for items in parts.values() for item in items]
        images = cached_images(paths, image_size, on_progress=on_progress)
        splits, start = [], 0
        for items in parts.values():
            labels = torch.tensor([numbers[item.label] for item in items], dtype=torch.int64)
            splits.append(Split(images[start : start + len(items)], labels))
            start += len(items)
        train, val, test = splits
        return Domain(domain.name, train, val, test, plan.classes)

    return Stream(
        plan.name,
        plan.classes,
        tuple(build(domain) for domain in plan.domains if domain.learned),
        tuple(build(domain) for domain in plan.domains if not domain.learned),
        plan.augmentation,
        tuple(plan.rows()),
        plan.differences,
    )
