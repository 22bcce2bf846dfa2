"""`CheckResult`: what a check found, for the terminal, the page and the JSON file."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from sodap.formats import plural
from sodap.streams.class_names import listing
from sodap.streams.conversions import CONVERSIONS
from sodap.streams.grey import NO_RANGES, GreyRange, GreyRanges
from sodap.streams.items import SkippedFile

DomainSplit = tuple[str, str]
"""The name of a domain and of one of its splits."""

KINDS = {
    "exact": "the same file",
    "near": "the same picture",
    "group": "the same group (patient, lesion or video)",
}

WITHIN, ACROSS = "within a domain", "across domains"
"""Places of a leak: two splits of one domain, or splits of two domains."""


@dataclass(frozen=True)
class ImageRef:
    """An image of the stream by domain, split and path."""

    domain: str
    split: str
    label: str
    path: str

    @property
    def domain_split(self) -> DomainSplit:
        return self.domain, self.split

    def __str__(self) -> str:
        return f"{self.domain}/{self.split}: {self.path}"


@dataclass(frozen=True)
class Duplicates:
    """Files with the same content ("exact") or the same picture ("near")."""

    kind: str
    images: tuple[ImageRef, ...]

    @property
    def where(self) -> str:
        if len({image.domain for image in self.images}) > 1:
            return "across domains"
        if len({image.split for image in self.images}) > 1:
            return "across splits"
        return "within a split"

    @property
    def conflict(self) -> bool:
        """Whether the files have different labels."""
        return len({image.label for image in self.images}) > 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "pictures": [asdict(image) for image in self.images]}


@dataclass(frozen=True)
class Leak:
    """Val or test images that are also, as a copy or by group, in another split."""

    kind: str
    held: DomainSplit
    """The val or test split."""
    other: DomainSplit
    images: int
    """Number of affected images in `held`."""
    of: int
    """Number of all images in `held`."""
    examples: tuple[tuple[str, str], ...]
    """Paths of an affected image and of its counterpart in `other`."""

    def __str__(self) -> str:
        (domain, split), (other_domain, other_split) = self.held, self.other
        place = other_split if other_domain == domain else f"{other_split} of {other_domain}"
        return (
            f"{self.images} of {self.of} {split} images of {domain}: "
            f"{KINDS[self.kind]} is in {place}"
        )


@dataclass(frozen=True)
class Flaw:
    """A problem with an image file."""

    domain: str
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.domain}: {self.path} {self.what}"


@dataclass(frozen=True)
class CheckResult:
    """Everything that a check found."""

    name: str
    classes: tuple[str, ...]
    counts: dict[DomainSplit, Counter[str]]
    """Images of each class in the three splits of each domain, in the order of learning."""
    differences: tuple[str, ...] = ()
    """How the files differ from the complete data set, the paper or the saved splits."""
    missing: tuple[str, ...] = ()
    """Classes without images in a domain or split."""
    leaks: tuple[Leak, ...] = ()
    leaked: dict[str, int] = field(default_factory=dict)
    """Place of a leak (`WITHIN`, `ACROSS`) -> number of val and test images that leak there."""
    leaked_groups: dict[str, int] = field(default_factory=dict)
    """Place of a leak -> number of groups that are in two splits there."""
    questions: tuple[str, ...] = ()
    """What only the user can know, such as whether two groups are the same patient."""
    doubtful: tuple[str, ...] = ()
    """Classes that look misspelt, one sentence each."""
    learned: tuple[str, ...] = ()
    """Domains that are learned, not only tested."""
    duplicates: tuple[Duplicates, ...] = ()
    unreadable: tuple[Flaw, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    """Unreadable files that were left out before the check."""
    tiny: tuple[Flaw, ...] = ()
    conversions: dict[str, Counter[str]] = field(default_factory=dict)
    """Conversion to 8-bit RGB that changes an image -> domain -> number of images."""
    ranges: GreyRanges = NO_RANGES
    """Black and white of deep grey images, measured on the training images."""
    without_images: tuple[str, ...] = ()
    """Domains with lists only."""
    ungrouped: tuple[str, ...] = ()
    """Domains without groups, where a leak by patient cannot be found."""
    sheets: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Domain -> JPEG with a few images of each class."""
    pairs: bytes | None = field(default=None, repr=False)
    """JPEG with some duplicates side by side."""
    warnings: tuple[str, ...] = ()
    """Warnings from reading the folder or table."""

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Reasons why the stream cannot be learned; one sentence each."""
        found = []
        if len(self.classes) < 2:
            found.append(f"there is only one class, {', '.join(self.classes)}; two are needed")
        found += [
            f"the {split} split of domain '{domain}' is empty"
            for (domain, split), counts in self.counts.items()
            if not counts.total() and domain in self.learned
        ]
        found += [f"{flaw.path} {flaw.what}" for flaw in self.unreadable[:3]]
        if len(self.unreadable) > 3:
            found.append(f"{len(self.unreadable) - 3} more files cannot be read")
        return tuple(found)

    @property
    def converted(self) -> tuple[str, ...]:
        """Which images are converted and how, one line each."""
        lines = []
        for kind, domains in self.conversions.items():
            found: GreyRange | None = getattr(self.ranges, kind, None)
            where = ", ".join(f"{name} {count}" for name, count in domains.items())
            line = f"{plural(domains.total(), 'image')} {CONVERSIONS[kind]}"
            lines.append(f"{line}{'' if found is None else f', {found}'} ({where})")
        return tuple(lines)

    @property
    def how_to_confirm(self) -> str:
        """What to do about doubtful classes."""
        names = shlex.quote(listing(self.classes))
        return (
            f"Correct the names of doubtful classes, or confirm all classes with --classes {names} "
            f"here and classes={names} in a run."
        )

    @property
    def unchecked(self) -> str:
        """A sentence about domains whose groups could not be checked; empty if there are none."""
        if not self.ungrouped:
            return ""
        if {domain for domain, _ in self.counts} <= set(self.ungrouped):
            return "Groups (patients) were not given, so they were not checked."
        return (
            f"Groups (patients) were not given for {', '.join(self.ungrouped)}, "
            f"so they were not checked there."
        )

    @property
    def verdict(self) -> str:
        """The conclusion: which leaks were found, or none, limited to what was checked."""
        if self.leaks:
            found = f"There is leakage: {', '.join(map(self._leaked, (WITHIN, ACROSS)))}."
        elif self.without_images:
            found = "No leakage was found in the lists. The images themselves were not checked."
        elif self.unchecked:
            found = "No leak between splits was found by file or picture."
        else:
            found = "No leakage was found."
        return f"{found} {self.unchecked}".strip()

    def _leaked(self, place: str) -> str:
        images = plural(self.leaked.get(place, 0), "val or test image")
        groups = self.leaked_groups.get(place, 0)
        return f"{images} {place}" + (f" ({plural(groups, 'group')})" if groups else "")

    @property
    def all_checked(self) -> bool:
        return not self.ungrouped and not self.without_images

    @property
    def conflicts(self) -> tuple[Duplicates, ...]:
        """Duplicates with different labels."""
        return tuple(each for each in self.duplicates if each.conflict)

    def duplicate_counts(self) -> dict[str, Counter[str]]:
        """Kind -> where -> number of sets of duplicates."""
        found: dict[str, Counter[str]] = {"exact": Counter(), "near": Counter()}
        for each in self.duplicates:
            found[each.kind][each.where] += 1
        return found

    def to_json(self) -> dict[str, Any]:
        """The content of `check.json`: everything but the pictures."""
        return {
            "name": self.name,
            "classes": list(self.classes),
            "counts": [
                {"domain": domain, "split": split, "classes": {c: found[c] for c in self.classes}}
                for (domain, split), found in self.counts.items()
            ],
            "differences": list(self.differences),
            "missing": list(self.missing),
            "obstacles": list(self.obstacles),
            "verdict": self.verdict,
            "leaks": [asdict(leak) | {"sentence": str(leak)} for leak in self.leaks],
            "leaked": self.leaked,
            "leaked_groups": self.leaked_groups,
            "questions": list(self.questions),
            "doubtful": list(self.doubtful),
            "twins": [each.to_json() | {"where": each.where} for each in self.duplicates],
            "conflicts": [each.to_json() for each in self.conflicts],
            "unreadable": [asdict(flaw) for flaw in self.unreadable],
            "skipped": [asdict(each) for each in self.skipped],
            "tiny": [asdict(flaw) for flaw in self.tiny],
            "conversions": {kind: dict(found) for kind, found in self.conversions.items()},
            "ranges": self.ranges.to_json(),
            "without_images": list(self.without_images),
            "ungrouped": list(self.ungrouped),
            "warnings": list(self.warnings),
        }
