"""Named ways to make a stream of data sets: which domains, which images, which side of the split.

A `Protocol` is a description. `plan` applies it to the files that are here, without decoding an
image; `build_stream` decodes what was planned. In between a plan can be saved, compared, checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from sodap.errors import SodapError
from sodap.streams.augment import Augmentation
from sodap.streams.cache import decoded
from sodap.streams.catalogue import find_source, locate, read_source
from sodap.streams.items import Item, Source
from sodap.streams.sources import core50, retinopathy, skin
from sodap.streams.sources.folder import read_folder
from sodap.streams.sources.table import read_table
from sodap.streams.splits import (
    SPLITS,
    Fractions,
    Matched,
    SplitRow,
    apply_splits,
    given_splits,
    match_list,
    read_list_rows,
    read_paper_lists,
    relative,
    split,
    undersample,
)
from sodap.streams.stream import Domain, Split, Stream

Counts = Mapping[str, int]
"""Class -> images."""


@dataclass(frozen=True)
class DomainPlan:
    """Where a domain's images come from."""

    name: str
    source: str
    part: str | None = None
    """The domain of the source's items, where one data set holds several."""
    keep: Counts | Literal["balance"] | None = None
    """How many images of a class are drawn; "balance": as many as the rarest class has."""
    listed: str | None = None
    """Under which name the paper's authors have published a list of splits."""
    expected: Counts | None = None
    """How many images of each class the paper's tables have."""


@dataclass(frozen=True)
class Protocol:
    """One way to make a stream; everything but the seed is fixed."""

    name: str
    title: str
    classes: tuple[str, ...]
    domains: tuple[DomainPlan, ...]
    """In the order of learning; domains that are never learned come last."""
    fractions: Fractions
    grouped: bool
    """Whether a patient, a lesion or a video stays on one side."""
    augmentation: Augmentation
    note: str
    unseen: tuple[str, ...] = ()
    """Domains that are only tested on."""
    expected_split: str | None = None
    """The split that the expected counts speak of, where it is not all images."""


# ------------------------------------------------------------------ plans


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
                kinds = split(items, protocol.fractions, seed, grouped=protocol.grouped, root=root)
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
    return _plan_own(root.resolve().name, items, root, seed, saved)


def plan_table(file: Path, seed: int = 0, *, saved: Sequence[SplitRow] | None = None) -> Plan:
    """A user's table: domains in the order in which they first appear."""
    items = read_table(file)
    if not items:
        raise SodapError(f"{file} lists no images")
    return _plan_own(file.stem, items, file.parent, seed, saved)


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
            kinds = split(own, EIGHT_ONE_ONE, seed, grouped=True, root=root)
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


def _unexpected(protocol: Protocol, wanted: DomainPlan, domain: PlannedDomain) -> list[str]:
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
        images = decoded(paths, image_size, on_progress=on_progress)
        splits, start = {}, 0
        for kind, items in parts.items():
            labels = torch.tensor([numbers[item.label] for item in items], dtype=torch.int64)
            splits[kind] = Split(images[start : start + len(items)], labels)
            start += len(items)
        return Domain(domain.name, **splits)

    return Stream(
        plan.name,
        plan.classes,
        tuple(build(domain) for domain in plan.domains if domain.learned),
        tuple(build(domain) for domain in plan.domains if not domain.learned),
        plan.augmentation,
        tuple(plan.rows()),
        plan.differences,
    )


# ------------------------------------------------------------------ the protocols

_PROTOCOLS: dict[str, Protocol] = {}


def register_protocol(protocol: Protocol) -> Protocol:
    if protocol.name in _PROTOCOLS:
        raise ValueError(f"a protocol named '{protocol.name}' is registered already")
    _PROTOCOLS[protocol.name] = protocol
    return protocol


def protocol_names() -> list[str]:
    return list(_PROTOCOLS)


def find_protocol(name: str) -> Protocol:
    if name not in _PROTOCOLS:
        raise SodapError(f"no protocol is called '{name}'; there are: {', '.join(_PROTOCOLS)}")
    return _PROTOCOLS[name]


EIGHT_ONE_ONE = (8, 1, 1)
MEDICAL_VIEWS = Augmentation(hflip=True, vflip=True, rotate=8)
OBJECT_VIEWS = Augmentation(hflip=True)

DR = retinopathy.CLASSES
SKIN = skin.CLASSES
OBJECTS = core50.CLASSES

_PAPER_DR = (
    DomainPlan(
        "aptos", "aptos2019", listed="aptos", expected=dict(zip(DR, (1805, 1562, 295), strict=True))
    ),
    DomainPlan("ddr", "ddr", listed="ddr", expected=dict(zip(DR, (6266, 5343, 913), strict=True))),
    DomainPlan(
        "drd",
        "drd",
        listed="drd",
        keep={"Normal": 5000},
        expected=dict(zip(DR, (5000, 8608, 708), strict=True)),
    ),
)
_PAPER_SKIN = tuple(
    DomainPlan(name, name, keep="balance", expected=dict.fromkeys(SKIN, count))
    for name, count in (("isic2020", 584), ("ham10000", 1113), ("derm7pt", 252))
)

# Training images of each class (row) in each session (column), as the paper prints them.
_CORE50_TRAINING = (
    (1064, 1066, 1066, 1064, 1066, 1064, 1066, 1064, 1066, 1066, 1066),
    (1048, 1052, 1052, 1052, 1052, 1051, 1049, 1050, 1052, 1052, 1047),
    (1070, 1067, 1067, 1069, 1064, 1070, 1070, 1066, 1067, 1067, 1070),
    (1041, 1042, 1040, 1039, 1033, 1039, 1039, 1040, 1043, 1041, 1041),
    (1039, 1038, 1040, 1041, 1041, 1038, 1040, 1040, 1039, 1039, 1038),
    (1064, 1059, 1065, 1065, 1058, 1064, 1065, 1062, 1066, 1065, 1064),
    (1047, 1046, 1045, 1045, 1049, 1048, 1045, 1047, 1046, 1044, 1048),
    (1002, 1009, 1002, 1011, 1014, 1002, 1020, 1001, 1017, 1007, 1004),
    (1060, 1057, 1060, 1062, 1052, 1059, 1054, 1060, 1053, 1057, 1072),
    (1057, 1054, 1057, 1048, 1047, 1057, 1047, 1058, 1046, 1052, 1043),
)


def _session(number: int, *, expected: bool = False) -> DomainPlan:
    column = {name: row[number - 1] for name, row in zip(OBJECTS, _CORE50_TRAINING, strict=True)}
    return DomainPlan(
        f"s{number}", "core50", part=f"s{number}", expected=column if expected else None
    )


register_protocol(
    Protocol(
        "paper-dr",
        "Diabetic retinopathy as in the paper: APTOS 2019, DDR, DRD",
        DR,
        _PAPER_DR,
        EIGHT_ONE_ONE,
        grouped=False,
        augmentation=MEDICAL_VIEWS,
        note="Split by image: the two eyes of a patient can be on both sides. "
        "Give the authors' lists to have their splits.",
    )
)
register_protocol(
    Protocol(
        "grouped-dr",
        "The same three data sets, split by patient",
        DR,
        _PAPER_DR,
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=MEDICAL_VIEWS,
        note="Patients are known for DRD alone; in the other two, an image is on its own.",
    )
)
register_protocol(
    Protocol(
        "paper-skin",
        "Melanoma as in the paper: ISIC 2020, HAM10000, Derm7pt",
        SKIN,
        _PAPER_SKIN,
        EIGHT_ONE_ONE,
        grouped=False,
        augmentation=MEDICAL_VIEWS,
        note="Split by image: photographs of one lesion can be on both sides. "
        "The paper does not say which benign images it drew; here the seed does.",
    )
)
register_protocol(
    Protocol(
        "grouped-skin",
        "The same three data sets, split by patient or lesion",
        SKIN,
        _PAPER_SKIN,
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=MEDICAL_VIEWS,
        note="No patient (ISIC 2020) and no lesion (HAM10000) is on two sides.",
    )
)
register_protocol(
    Protocol(
        "paper-core50",
        "CORe50 as in the paper: eleven sessions, split by frame",
        OBJECTS,
        tuple(_session(number, expected=True) for number in range(1, 12)),
        (70, 15, 15),
        grouped=False,
        augmentation=OBJECT_VIEWS,
        note="Split by frame: neighbouring frames of one video are on both sides.",
        expected_split="train",
    )
)
register_protocol(
    Protocol(
        "core50-sequences",
        "CORe50: eleven sessions, split by video",
        OBJECTS,
        tuple(_session(number) for number in range(1, 12)),
        (70, 15, 15),
        grouped=True,
        augmentation=OBJECT_VIEWS,
        note="A class has five videos a session: three train, one validates, one tests.",
    )
)
register_protocol(
    Protocol(
        "core50-ni",
        "CORe50: eight sessions to learn, three that are never seen",
        OBJECTS,
        tuple(_session(number) for number in (1, 2, 4, 5, 6, 8, 9, 11, 3, 7, 10)),
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=OBJECT_VIEWS,
        note="Sessions 3, 7 and 10 are tested on as a whole. In the others, a video of each class "
        "validates and one tests, so that forgetting can be measured.",
        unseen=("s3", "s7", "s10"),
    )
)
register_protocol(
    Protocol(
        "open-dr",
        "Diabetic retinopathy from open data: DeepDRiD, IDRiD, DeepDRiD ultra-wide-field",
        DR,
        tuple(DomainPlan(name, name) for name in ("deepdrid", "idrid", "deepdrid_uwf")),
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=MEDICAL_VIEWS,
        note="Split by patient; IDRiD publishes no patients, there an image is on its own.",
    )
)
register_protocol(
    Protocol(
        "open-skin",
        "Melanoma from open data: ISIC 2020, HAM10000, ISIC 2017",
        SKIN,
        tuple(
            DomainPlan(name, name, keep="balance") for name in ("isic2020", "ham10000", "isic2017")
        ),
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=MEDICAL_VIEWS,
        note="Split by patient (ISIC 2020) or lesion (HAM10000); ISIC 2017 publishes neither.",
    )
)
