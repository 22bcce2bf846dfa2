"""Splits into train, val and test: assigned at random, given by the data set, saved and reloaded.

Random splits depend only on the seed and on the names of files and groups. The order of the files,
the machine and the location of the folder do not matter.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Literal

from sodap.errors import SodapError
from sodap.randomness import Randomness
from sodap.storage import write_bytes
from sodap.streams.items import SPLITS, Item
from sodap.streams.names import is_utf8, printable

Fractions = tuple[float, float, float]
"""Shares of train, val and test; (8, 1, 1) means the same as (0.8, 0.1, 0.1)."""


# ------------------------------------------------------------------ assignment


def assign_splits(
    items: Sequence[Item],
    fractions: Fractions,
    seed: int,
    *,
    grouped: bool,
    root: Path | None = None,
) -> list[str]:
    """Assign each item to a split, stratified by label; returns splits in the order of the items.

    With `grouped`, all images of a group get the same split. An image without a group counts as a
    group of one. If no group mixes labels, every split is within one group of its share of each
    class. A class with at least as many groups as there are splits is in every split, even if its
    share is less than one group. File names are taken relative to `root`.
    """
    shares = _normalise(fractions)
    groups: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        own = f"file {relative(item.path, root)}"
        groups[f"group {item.group}" if grouped and item.group is not None else own].append(index)

    randomness = Randomness(seed)
    shuffled = sorted(groups, key=lambda key: (randomness.number(f"split {key}"), key))
    labels = {key: Counter(items[index].label for index in groups[key]) for key in shuffled}
    assigned = _assign_groups(labels, shares)
    splits = [""] * len(items)
    for key, members in groups.items():
        for index in members:
            splits[index] = assigned[key]
    return splits


def _normalise(fractions: Fractions) -> dict[str, float]:
    """Shares that sum to 1, without the splits whose share is 0."""
    if len(fractions) != 3 or min(fractions) < 0 or fractions[0] <= 0:
        raise SodapError(
            f"the shares of train, val and test must be three numbers, none below 0 and the first "
            f"above 0, got {fractions}"
        )
    whole = sum(fractions)
    return {name: part / whole for name, part in zip(SPLITS, fractions, strict=True) if part > 0}


def _assign_groups(
    labels: Mapping[str, Counter[str]], shares: Mapping[str, float]
) -> dict[str, str]:
    """A split for each group; `labels` counts the labels in each group, in random order."""
    total: Counter[str] = sum(labels.values(), Counter())
    holders = {label: [key for key, counts in labels.items() if label in counts] for label in total}
    rarest_first = sorted(total, key=lambda label: (len(holders[label]), label))
    held: dict[str, Counter[str]] = {name: Counter() for name in shares}
    assigned: Counter[str] = Counter()
    split_of: dict[str, str] = {}

    def assign(key: str, name: str) -> None:
        split_of[key] = name
        held[name].update(labels[key])
        assigned.update(labels[key])

    def deficit(name: str, counts: Counter[str]) -> float:
        """How far a split is below its share once these images are assigned as well.

        Adding them where this is largest reduces the squared error over all splits the most.
        """
        return sum(
            count * (shares[name] * (assigned[label] + count) - held[name][label]) / total[label]
            for label, count in sorted(counts.items())
        )

    # First give every split one group of each class, small groups to the splits with small
    # shares. With too few groups, train and test come before val.
    for label in rarest_first:
        present = {split_of[key] for key in holders[label] if key in split_of}
        free = sorted(
            (key for key in holders[label] if key not in split_of),
            key=lambda key: labels[key][label],
        )
        waiting = [name for name in ("train", "test", "val") if name in shares.keys() - present]
        for name in waiting[: len(free)]:
            assign(free.pop(-1 if name == "train" else 0), name)

    # Then the remaining groups in random order, rare classes first while there is most choice.
    for label in rarest_first:
        for key in holders[label]:
            if key not in split_of:
                counts = labels[key]
                assign(key, max(shares, key=lambda name: deficit(name, counts)))
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


def relative(path: Path, root: Path | None) -> str:
    """A path relative to `root`, with slashes; unchanged if the file is not below `root`."""
    if root is not None and path.is_relative_to(root):
        path = path.relative_to(root)
    return path.as_posix()


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
            sentences.append(f"{domain}: {self.missing} images of the {by} are not here")
        if self.relabelled:
            sentences.append(f"{domain}: {self.relabelled} images have another class in the {by}")
        return sentences


def apply_splits(
    items: Sequence[Item], rows: Sequence[SplitRow], domain: str, *, root: Path | None = None
) -> MatchedItems:
    """The items of a domain that are in a file of splits, with their splits."""
    saved = {row.path: row for row in rows if row.domain == domain}
    if not saved:
        raise SodapError(f"the saved splits have no domain '{domain}'")
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
