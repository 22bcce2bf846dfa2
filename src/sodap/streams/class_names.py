"""Doubtful classes: names that may be misspelt, such as `begnin` beside `benign`."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sodap.errors import SodapError
from sodap.formats import plural
from sodap.streams.items import PlannedDomain

ALL_CLASSES = "all"
"""Value of `classes` that confirms the classes of all images, whatever they are."""

MAX_LISTED = 12
"""Longest list of classes in a message."""


@dataclass(frozen=True)
class DoubtfulClass:
    """A class that is in one of several domains only, or is named almost like another one."""

    name: str
    images: int
    only_in: str | None
    """The only domain that has it; None if several have it or there is only one."""
    similar: str | None
    """Another class with almost the same name."""

    def __str__(self) -> str:
        where = f", only in {self.only_in}" if self.only_in is not None else ""
        typo = f", perhaps a typo for '{self.similar}'" if self.similar is not None else ""
        return f"the class '{self.name}' ({plural(self.images, 'image')}{where}){typo}"


def doubtful_classes(domains: Sequence[PlannedDomain]) -> list[DoubtfulClass]:
    """Classes of a user's own images that look like mistakes, sorted by name."""
    images: Counter[str] = Counter()
    homes: dict[str, list[str]] = defaultdict(list)
    for domain in domains:
        for label, count in domain.counts().items():
            images[label] += count
            homes[label].append(domain.name)

    order = [domain.name for domain in domains]

    def weight(label: str) -> tuple[int, int, int, str]:
        """Larger for the name that is more likely to be right: more frequent, or used earlier."""
        return len(homes[label]), images[label], -order.index(homes[label][0]), label

    found = []
    for name in sorted(images):
        alone = len(domains) > 1 and len(homes[name]) == 1
        likely = [
            each
            for each in images
            if weight(each) > weight(name) and similar(name, each, strict=not alone)
        ]
        if likely or alone:
            best = max(likely, key=weight) if likely else None
            found.append(DoubtfulClass(name, images[name], homes[name][0] if alone else None, best))
    explained = {each.similar for each in found}  # alone because its other images are misspelt
    return [each for each in found if each.similar is not None or each.name not in explained]


def refuse_doubtful(name: str, classes: Sequence[str], doubtful: Sequence[DoubtfulClass]) -> None:
    """Raise an error that shows how to confirm the classes."""
    if doubtful:
        listed = "; ".join(map(str, doubtful[:3]))
        more = f"; and {len(doubtful) - 3} more" if len(doubtful) > 3 else ""
        raise SodapError(
            f"{name} has doubtful classes: {listed}{more}; correct their names, or confirm them "
            f"with {shlex.quote(f'classes={listing(classes)}')}"
        )


def listing(classes: Sequence[str]) -> str:
    """A value of the option `classes` that confirms these classes."""
    short = len(classes) <= MAX_LISTED and not any("," in name for name in classes)
    return ",".join(classes) if short else ALL_CLASSES


def parse_classes(given: str | Sequence[str] | None) -> Sequence[str] | None:
    """Names of classes from a list or from `benign,malignant`; None for None and `all`."""
    if given is None or given == ALL_CLASSES:
        return None
    names = given.split(",") if isinstance(given, str) else list(given)
    names = [name.strip() for name in names]
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        raise SodapError(
            f"classes takes two or more different names, such as classes=benign,malignant, "
            f"got {', '.join(map(repr, names))}"
        )
    return names


# ------------------------------------------------------------------ similar names


def similar(one: str, other: str, *, strict: bool = True) -> bool:
    """Whether two names may be the same word: other case or spaces, plural, one or two typos.

    If `strict`, differences that mostly have a meaning do not count: digits and signs (grade 1,
    HER2+), single letters and Roman numerals (type A, stage II), prefixes (abnormal, NPDR and
    PDR), and other letters in names of up to three letters.
    """
    a, b = _plain(one), _plain(other)
    if _singular(a) & _singular(b):
        return True
    shorter = min(len(a), len(b))
    allowed = int(shorter > 1) + int(shorter > 5)
    if strict:
        numbered = _marks(a) != _marks(b) or _numbered(one, other)
        if numbered or a.endswith(b) or b.endswith(a) or shorter <= 3:
            return False
    return abs(len(a) - len(b)) <= allowed and _edits(a, b) <= allowed


def _plain(name: str) -> str:
    """Lower case, without spaces, underscores and hyphens between words."""
    return re.sub(r"(?<=\w)[\s_.-]+(?=\w)", "", name.strip().casefold()).replace("_", "")


def _singular(name: str) -> set[str]:
    """The name, and what it may be the plural of."""
    return {name} | {name.removesuffix(end) for end in ("s", "es") if len(name) > len(end) + 2}


def _marks(name: str) -> list[str]:
    """Digits and signs."""
    return sorted(character for character in name if not character.isalpha())


def _numbered(one: str, other: str) -> bool:
    """Whether the words that differ are single letters or Roman numerals."""
    words = [re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+", name) for name in (one, other)]
    if len(words[0]) != len(words[1]):
        return False
    differing = [pair for pair in zip(*words, strict=True) if pair[0] != pair[1]]
    return bool(differing) and all(
        re.fullmatch(r"\w|[ivx]+", word, re.IGNORECASE) for pair in differing for word in pair
    )


def _edits(one: str, other: str) -> int:
    """Fewest letters to insert, delete, replace or swap with their neighbour."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        row = [i]
        for j, b in enumerate(other, start=1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, last = last, row
    return last[-1]
