"""What a check found; plain facts that become a table, a page or a JSON file."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

Side = tuple[str, str]
"""A domain and a split."""

KINDS = {
    "exact": "the same file",
    "near": "the same picture",
    "group": "the same group (patient, lesion or video)",
}


@dataclass(frozen=True)
class Picture:
    """One image of the stream."""

    domain: str
    split: str
    label: str
    path: str

    @property
    def side(self) -> Side:
        return self.domain, self.split

    def __str__(self) -> str:
        return f"{self.domain}/{self.split}: {self.path}"


@dataclass(frozen=True)
class Twins:
    """Files with the same content ("exact") or the same picture ("near")."""

    kind: str
    pictures: tuple[Picture, ...]

    @property
    def where(self) -> str:
        if len({picture.domain for picture in self.pictures}) > 1:
            return "across domains"
        if len({picture.split for picture in self.pictures}) > 1:
            return "across splits"
        return "within a split"

    @property
    def conflict(self) -> bool:
        """Whether one picture has two labels."""
        return len({picture.label for picture in self.pictures}) > 1


@dataclass(frozen=True)
class Leak:
    """Images held back for validation or test that the other side knows already."""

    kind: str
    held: Side
    other: Side
    images: int
    """How many of the held images are affected."""
    of: int
    """How many images the held side has."""
    examples: tuple[tuple[str, str], ...]
    """Paths: a held image and a relative of it on the other side."""

    def __str__(self) -> str:
        (domain, split), (elsewhere, known) = self.held, self.other
        place = known if elsewhere == domain else f"{known} of {elsewhere}"
        return (
            f"{self.images} of {self.of} {split} images of {domain}: "
            f"{KINDS[self.kind]} is in {place}"
        )


@dataclass(frozen=True)
class Flaw:
    """An image file that is not what it should be."""

    domain: str
    path: str
    what: str


@dataclass(frozen=True)
class CheckResult:
    name: str
    classes: tuple[str, ...]
    counts: dict[Side, Counter[str]]
    """Images of each class; every domain has three splits, in the order of learning."""
    differences: tuple[str, ...]
    """From what a paper or a data set promises."""
    missing: tuple[str, ...]
    """Classes that a domain or a split does not have."""
    leaks: tuple[Leak, ...]
    learned: tuple[str, ...] = ()
    """Domains that are not only tested on."""
    twins: tuple[Twins, ...] = ()
    unreadable: tuple[Flaw, ...] = ()
    tiny: tuple[Flaw, ...] = ()
    without_images: tuple[str, ...] = ()
    """Domains of which only lists are here."""
    ungrouped: tuple[str, ...] = ()
    """Domains in which no image has a group: whether a patient leaks is not known."""
    sheets: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Domain -> JPEG with a few images of each class."""
    pairs: bytes | None = field(default=None, repr=False)
    """JPEG with some twins side by side."""
    warnings: tuple[str, ...] = ()
    """What was said while the files were listed."""

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why these images cannot be learned as they are; one sentence each."""
        found = []
        if len(self.classes) < 2:
            found.append(f"there is one class only, {', '.join(self.classes)}; two are needed")
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
    def unchecked(self) -> str:
        """Where groups could not be compared, as a sentence; empty where they could."""
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
        """What is known where no leak was found: no more than was looked at."""
        if self.without_images:
            found = "No leakage was found in the lists. The images themselves were not looked at."
        elif self.unchecked:
            found = "No leak between splits was found by file or picture."
        else:
            found = "No leakage was found."
        return f"{found} {self.unchecked}".strip()

    @property
    def all_checked(self) -> bool:
        return not self.ungrouped and not self.without_images

    @property
    def conflicts(self) -> tuple[Twins, ...]:
        return tuple(twins for twins in self.twins if twins.conflict)

    def twin_counts(self) -> dict[str, Counter[str]]:
        """Kind -> where -> how many sets of twins."""
        found: dict[str, Counter[str]] = {"exact": Counter(), "near": Counter()}
        for twins in self.twins:
            found[twins.kind][twins.where] += 1
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything but the pictures."""
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
            "leaks": [asdict(leak) | {"sentence": str(leak)} for leak in self.leaks],
            "twins": [asdict(each) | {"where": each.where} for each in self.twins],
            "conflicts": [asdict(each) for each in self.conflicts],
            "unreadable": [asdict(flaw) for flaw in self.unreadable],
            "tiny": [asdict(flaw) for flaw in self.tiny],
            "without_images": list(self.without_images),
            "ungrouped": list(self.ungrouped),
            "warnings": list(self.warnings),
        }
