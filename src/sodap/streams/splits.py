"""Splits into train, val and test: assigned at random, given by the data set, saved and reloaded.

Random splits depend only on the seed and on the names of files and groups. The order of the files,
the machine and the location of the folder do not matter.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from sodap.errors import SodapError
from sodap.formats import plural
from sodap.randomness import Randomness
from sodap.storage import write_bytes
from sodap.streams.folds import Fold, assign_folds
from sodap.streams.items import SPLITS, Item, PlannedDomain, relative
from sodap.streams.names import is_utf8, printable

Fractions = tuple[float, float, float]
"""Shares of train, val and test; (8, 1, 1) means the same as (0.8, 0.1, 0.1)."""


# ------------------------------------------------------------------ assignment


def assign_splits(
    domains: Sequence[PlannedDomain],
    fractions: Fractions,
    seed: int,
    *,
    grouped: bool,
    fold: Fold | None = None,
) -> list[PlannedDomain]:
    """Assign the images of all domains without splits; domains with splits stay as they are.

    The domains are of one origin. With `grouped`, all images of a group get the same split in all
    domains; a group in a domain with splits keeps the split that it has there. An image without a
    group counts as a group of one.

    Splits are stratified by domain and label. If no group mixes labels or domains, every split is
    within one group of its share of each class. A class of a domain with at least as many groups
    as there are splits is in every split, even if its share is less than one group.

    With a `fold`, its images are the test split (see `sodap.streams.folds`), and `fractions` decide
    about train and val only.
    """
    shares = _normalise(fractions)
    units: dict[Unit, list[tuple[int, int]]] = defaultdict(list)
    for number, domain in enumerate(domains):
        for index, item in enumerate(domain.items if not domain.splits else ()):
            units[_unit(item, number, domain.root, grouped)].append((number, index))

    randomness = Randomness(seed)
    shuffled = sorted(units, key=lambda unit: (randomness.number(f"split {unit[0]}"), unit))
    strata = {
        unit: Counter((number, domains[number].items[index].label) for number, index in units[unit])
        for unit in shuffled
    }
    fixed = _known_splits(domains) if grouped else {}
    fixed = {unit: fixed[unit] for unit in shuffled if unit in fixed}
    tested: dict[Unit, str] = {}
    if fold is not None:
        folds = assign_folds({u: strata[u] for u in shuffled if u not in fixed}, fold.of)
        tested = {unit: "test" for unit, number in folds.items() if number == fold.number}
        strata = {unit: counts for unit, counts in strata.items() if unit not in tested}
        shares = _normalise((fractions[0], fractions[1], 0))
    assigned = tested | _assign_units(strata, shares, fixed)
    return [
        domain
        if domain.splits
        else replace(
            domain,
            splits=tuple(
                assigned[_unit(item, number, domain.root, grouped)] for item in domain.items
            ),
        )
        for number, domain in enumerate(domains)
    ]


Unit = tuple[str, int]
"""What gets one split: a group, or a file without a group and the number of its domain."""

Stratum = tuple[int, str]
"""The number of a domain and a label."""


def _unit(item: Item, number: int, root: Path | None, grouped: bool) -> Unit:
    if grouped and item.group is not None:
        return f"group {item.group}", -1
    return f"file {relative(item.path, root)}", number


def _known_splits(domains: Iterable[PlannedDomain]) -> dict[Unit, str]:
    """The split of each group in domains with splits; where it has several, the most frequent."""
    found: dict[Unit, Counter[str]] = defaultdict(Counter)
    for domain in domains:
        for item, split in zip(domain.items, domain.splits, strict=False):
            if item.group is not None:
                found[_unit(item, 0, None, True)][split] += 1
    return {unit: max(SPLITS, key=lambda name: found[unit][name]) for unit in found}


def _normalise(fractions: Fractions) -> dict[str, float]:
    """Shares that sum to 1, without the splits whose share is 0."""
    if len(fractions) != 3 or min(fractions) < 0 or fractions[0] <= 0:
        raise SodapError(
            f"the shares of train, val and test must be three numbers, none below 0 and the first "
            f"above 0, got {fractions}"
        )
    whole = sum(fractions)
    return {name: part / whole for name, part in zip(SPLITS, fractions, strict=True) if part > 0}


def _assign_units(
    strata: Mapping[Unit, Counter[Stratum]],
    shares: Mapping[str, float],
    fixed: Mapping[Unit, str],
) -> dict[Unit, str]:
    """A split for each unit, `fixed` ones first.

    `strata` counts the images of each stratum in each unit; the units are in random order.
    """
    total: Counter[Stratum] = sum(strata.values(), Counter())
    holders: dict[Stratum, list[Unit]] = {stratum: [] for stratum in total}
    for unit, counts in strata.items():
        for stratum in counts:
            holders[stratum].append(unit)
    rarest_first = sorted(total, key=lambda stratum: (len(holders[stratum]), stratum))
    held: dict[str, Counter[Stratum]] = {name: Counter() for name in SPLITS}
    assigned: Counter[Stratum] = Counter()
    split_of: dict[Unit, str] = {}

    def assign(unit: Unit, name: str) -> None:
        split_of[unit] = name
        held[name].update(strata[unit])
        assigned.update(strata[unit])

    def deficit(name: str, counts: Counter[Stratum]) -> float:
        """How far a split is below its share once these images are assigned as well.

        Adding them where this is largest reduces the squared error over all splits the most.
        """
        return sum(
            count * (shares[name] * (assigned[each] + count) - held[name][each]) / total[each]
            for each, count in sorted(counts.items())
        )

    for unit, name in fixed.items():
        assign(unit, name)

    # Give every split one group of each class, small groups to the splits with small shares. With
    # too few groups, train and test come before val.
    for stratum in rarest_first:
        present = {split_of[unit] for unit in holders[stratum] if unit in split_of}
        free = sorted(
            (unit for unit in holders[stratum] if unit not in split_of),
            key=lambda unit: strata[unit][stratum],
        )
        waiting = [name for name in ("train", "test", "val") if name in shares.keys() - present]
        for name in waiting[: len(free)]:
            assign(free.pop(-1 if name == "train" else 0), name)

    # Then the remaining groups in random order, rare classes first while there is most choice.
    for stratum in rarest_first:
        for unit in holders[stratum]:
            if unit not in split_of:
                counts = strata[unit]
                assign(unit, max(shares, key=lambda name: deficit(name, counts)))
    return split_of


def given_splits(items: Sequence[Item]) -> list[str]:
    """The splits that the items come with; all items of a domain must have one."""
    without = [item for item in items if item.split is None]
    if without:
        raise SodapError(
            f"{len(without)} of {len(items)} images have no split while others have one, "
            f"for example {without[0].path}; give a split to all images of a domain or to none"
        )
    splits = [item.split for item in items if item.split is not None]
    for item, name in zip(items, splits, strict=True):
        if name not in SPLITS:
            raise SodapError(f"{item.path} has the split '{name}'; use train, val or test")
    return splits


def undersample(
    items: Sequence[Item],
    counts: Mapping[str, int] | Literal["balance"],
    seed: int,
    *,
    root: Path | None = None,
) -> list[Item]:
    """Keep at most `counts[label]` random items of a label; labels not named are kept whole.

    "balance" keeps as many of every label as the rarest label has. The order is unchanged.
    """
    present = Counter(item.label for item in items)
    wanted = dict.fromkeys(present, min(present.values(), default=0))
    if counts != "balance":
        wanted = {**present, **counts}
    randomness = Randomness(seed)
    keys = [f"undersample {relative(item.path, root)}" for item in items]
    shuffled = sorted(range(len(items)), key=lambda i: (randomness.number(keys[i]), keys[i]))
    kept: set[int] = set()
    for index in shuffled:
        label = items[index].label
        if wanted[label] > 0:
            wanted[label] -= 1
            kept.add(index)
    return [item for index, item in enumerate(items) if index in kept]


# ------------------------------------------------------------------ saved splits


@dataclass(frozen=True)
class SplitRow:
    """A row of `splits.csv`."""

    domain: str
    path: str
    """Relative to the folder of the domain's data."""
    label: str
    original: str
    group: str
    """Empty if the data set has no groups."""
    split: str


COLUMNS = tuple(field.name for field in fields(SplitRow))


def write_splits(path: Path, rows: Sequence[SplitRow]) -> None:
    """Write a CSV file in UTF-8; file names keep their bytes, even if they are not UTF-8."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(astuple(row) for row in rows)
    write_bytes(path, text.getvalue().encode(errors="surrogateescape"))


def read_splits(path: Path) -> list[SplitRow]:
    """Read the rows that `write_splits` wrote."""
    try:
        # Read bytes to keep line ends inside of names; Excel adds a byte order mark.
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except FileNotFoundError as error:
        raise SodapError(f"there is no file of splits at {path}") from error
    except (OSError, ValueError, csv.Error) as error:
        raise SodapError(f"cannot read {printable(path)} as a table of splits") from error
    if not lines or tuple(lines[0]) != COLUMNS:
        raise SodapError(
            f"{path} is not a table of splits: its first line is not {','.join(COLUMNS)}"
        )
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(COLUMNS) or cells[-1] not in SPLITS:
            raise SodapError(
                f"{path}, row {number}: expected {len(COLUMNS)} cells, "
                f"the last of them train, val or test"
            )
        words = (cell for name, cell in zip(COLUMNS, cells, strict=True) if name != "path")
        if not all(map(is_utf8, words)):
            raise SodapError(f"{path}, row {number} is not in UTF-8; save the table as UTF-8")
    rows = [SplitRow(*cells) for cells in lines[1:]]
    if len({(row.domain, row.path) for row in rows}) < len(rows):
        raise SodapError(f"{path} lists an image twice; list every image once")
    return rows


@dataclass(frozen=True)
class MatchedItems:
    """Items that a list of splits names, and how the files differ from the list."""

    items: list[Item]
    splits: list[str]
    missing: int
    """Number of images in the list that are not on disk."""
    relabelled: int = 0
    """Number of images with another label in the list."""

    def differences(self, domain: str, by: str) -> list[str]:
        """One sentence for each kind of difference from the list; `by` names the list."""
        sentences = []
        if self.missing:
            sentences.append(f"{domain}: {plural(self.missing, 'image')} of the {by} not found")
        if self.relabelled:
            sentences.append(f"{domain}: {self.relabelled} images have another class in the {by}")
        return sentences


def apply_splits(
    items: Sequence[Item], rows: Sequence[SplitRow], domain: str, *, root: Path | None = None
) -> MatchedItems:
    """The items of a domain that are in a file of splits, with their splits."""
    saved = {row.path: row for row in rows if row.domain == domain}
    found = [(item, saved.get(relative(item.path, root))) for item in items]
    pairs = [(item, row) for item, row in found if row is not None]
    missing = saved.keys() - {row.path for _, row in pairs}
    not_utf8 = sorted(path for path in missing if not is_utf8(path))
    if not_utf8:  # a deleted file, or a table saved in Latin-1
        raise SodapError(
            f"the saved splits name '{printable(not_utf8[0])}', which is not in UTF-8 and no file "
            f"of domain '{domain}'; save the table as UTF-8 or delete the line"
        )
    return MatchedItems(
        items=[item for item, _ in pairs],
        splits=[row.split for _, row in pairs],
        missing=len(missing),
        relabelled=sum(item.label != row.label for item, row in pairs),
    )
