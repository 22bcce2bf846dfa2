"""Which image trains, which validates, which tests: dealt, given, saved and read again.

A deal depends on the seed and on the names of files and groups, never on the order in which a disk
lists them. It survives a move of the folder, another machine and another day.
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
from sodap.streams.items import Item
from sodap.streams.names import is_utf8, printable
from sodap.streams.sources.labels import read_rows
from sodap.streams.sources.retinopathy import STAGES

SPLITS = ("train", "val", "test")

Fractions = tuple[float, float, float]
"""Shares of train, val and test; (8, 1, 1) says the same as (0.8, 0.1, 0.1)."""


# ------------------------------------------------------------------ dealing


def assign_splits(
    items: Sequence[Item],
    fractions: Fractions,
    seed: int,
    *,
    grouped: bool,
    root: Path | None = None,
) -> list[str]:
    """The split of each item, in the items' order; stratified by label.

    With `grouped`, a group is dealt as one; an item without a group is a group of its own.
    Every split is within one group of its share of each class where groups have one label each.
    A class with at least as many groups as there are splits is in every split, even where its
    share is smaller than a group. `root` is what file names are relative to.
    """
    shares = _shares(fractions)
    groups: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        own = f"file {relative(item.path, root)}"
        groups[f"group {item.group}" if grouped and item.group is not None else own].append(index)

    draw = Randomness(seed)
    drawn = sorted(groups, key=lambda key: (draw.number(f"split {key}"), key))
    content = {key: Counter(items[index].label for index in groups[key]) for key in drawn}
    side = _deal(content, shares)
    found = [""] * len(items)
    for key, members in groups.items():
        for index in members:
            found[index] = side[key]
    return found


def _shares(fractions: Fractions) -> dict[str, float]:
    if len(fractions) != 3 or min(fractions) < 0 or fractions[0] <= 0:
        raise SodapError(
            f"the shares of train, val and test must be three numbers, none below 0 and the first "
            f"above 0, got {fractions}"
        )
    whole = sum(fractions)
    return {name: part / whole for name, part in zip(SPLITS, fractions, strict=True) if part > 0}


def _deal(content: Mapping[str, Counter[str]], shares: Mapping[str, float]) -> dict[str, str]:
    """A split for each group; `content` counts the labels of the groups, in the order drawn."""
    total: Counter[str] = sum(content.values(), Counter())
    holders = {
        label: [key for key, counts in content.items() if label in counts] for label in total
    }
    rarest_first = sorted(total, key=lambda label: (len(holders[label]), label))
    held: dict[str, Counter[str]] = {name: Counter() for name in shares}
    dealt: Counter[str] = Counter()
    side: dict[str, str] = {}

    def give(key: str, name: str) -> None:
        side[key] = name
        held[name].update(content[key])
        dealt.update(content[key])

    def lack(name: str, counts: Counter[str]) -> float:
        """How far a split is behind its share of what is dealt once these images are, too.

        Where this is largest, the images lower the squared error of all splits most.
        """
        return sum(
            count * (shares[name] * (dealt[label] + count) - held[name][label]) / total[label]
            for label, count in sorted(counts.items())
        )

    # Nobody goes without: one group of each class to each split, the small ones to those that
    # have small shares. Where there are too few groups, training and testing come before val.
    for label in rarest_first:
        present = {side[key] for key in holders[label] if key in side}
        free = sorted(
            (key for key in holders[label] if key not in side), key=lambda key: content[key][label]
        )
        waiting = [name for name in ("train", "test", "val") if name in shares.keys() - present]
        for name in waiting[: len(free)]:
            give(free.pop(-1 if name == "train" else 0), name)

    # All others in the order drawn; the rare classes first, while there is room to choose.
    for label in rarest_first:
        for key in holders[label]:
            if key not in side:
                counts = content[key]
                give(key, max(shares, key=lambda name: lack(name, counts)))
    return side


def given_splits(items: Sequence[Item]) -> list[str]:
    """The splits that the items carry themselves."""
    without = [item for item in items if item.split is None]
    if without:
        raise SodapError(
            f"{len(without)} of {len(items)} images have no split while others have one, "
            f"for example {without[0].path}; give a split to all images of a domain or to none"
        )
    found = [item.split for item in items if item.split is not None]
    for item, name in zip(items, found, strict=True):
        if name not in SPLITS:
            raise SodapError(f"{item.path} has the split '{name}'; there are train, val and test")
    return found


def undersample(
    items: Sequence[Item],
    counts: Mapping[str, int] | Literal["balance"],
    seed: int,
    *,
    root: Path | None = None,
) -> list[Item]:
    """At most so many items of a label, drawn at random; labels that are not named stay whole.

    "balance" keeps of every label as many as the rarest has. The items keep their order.
    """
    present = Counter(item.label for item in items)
    wanted = dict.fromkeys(present, min(present.values(), default=0))
    if counts != "balance":
        wanted = {**present, **counts}
    draw = Randomness(seed)
    keys = [f"undersample {relative(item.path, root)}" for item in items]
    drawn = sorted(range(len(items)), key=lambda index: (draw.number(keys[index]), keys[index]))
    kept: set[int] = set()
    for index in drawn:
        label = items[index].label
        if wanted[label] > 0:
            wanted[label] -= 1
            kept.add(index)
    return [item for index, item in enumerate(items) if index in kept]


def relative(path: Path, root: Path | None) -> str:
    """The name of a file below `root`, with slashes; a file elsewhere keeps its path."""
    if root is not None and path.is_relative_to(root):
        path = path.relative_to(root)
    return path.as_posix()


# ------------------------------------------------------------------ saved splits


@dataclass(frozen=True)
class SplitRow:
    """A line of a file of splits."""

    domain: str
    path: str
    """Relative to the folder of the domain's data."""
    label: str
    original: str
    group: str
    """Empty where the data set knows no groups."""
    split: str


COLUMNS = tuple(field.name for field in fields(SplitRow))


def write_splits(path: Path, rows: Sequence[SplitRow]) -> None:
    """A table in UTF-8, but for names of files: their bytes are written as the disk has them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(astuple(row) for row in rows)
    write_bytes(path, text.getvalue().encode(errors="surrogateescape"))


def read_splits(path: Path) -> list[SplitRow]:
    try:
        # Bytes, so that no line end inside a name is changed; Excel puts a mark before them.
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except FileNotFoundError as error:
        raise SodapError(f"there is no file of splits at {path}") from error
    except (OSError, ValueError, csv.Error) as error:
        raise SodapError(f"{printable(path)} cannot be read as a table of splits") from error
    if not lines or tuple(lines[0]) != COLUMNS:
        raise SodapError(f"{path} is no table of splits: its first line is not {','.join(COLUMNS)}")
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(COLUMNS) or cells[-1] not in SPLITS:
            raise SodapError(
                f"{path}, row {number}: there should be {len(COLUMNS)} cells, "
                f"the last of them train, val or test"
            )
        words = (cell for name, cell in zip(COLUMNS, cells, strict=True) if name != "path")
        if not all(map(is_utf8, words)):
            raise SodapError(f"{path}, row {number} is not in UTF-8; save the table as UTF-8")
    rows = [SplitRow(*cells) for cells in lines[1:]]
    if len({(row.domain, row.path) for row in rows}) < len(rows):
        raise SodapError(f"{path} names some image twice; every image has one split")
    return rows


@dataclass(frozen=True)
class Matched:
    """Items that a saved or published list names, and how the two differ."""

    items: list[Item]
    splits: list[str]
    missing: int
    """Images that the list names and the disk does not have."""
    relabelled: int = 0
    """Images whose label is another one in the list."""


def apply_splits(
    items: Sequence[Item], rows: Sequence[SplitRow], domain: str, *, root: Path | None = None
) -> Matched:
    """The items of a domain that saved splits name, with these splits."""
    saved = {row.path: row for row in rows if row.domain == domain}
    if not saved:
        raise SodapError(f"the saved splits know no domain '{domain}'")
    found = [(item, saved.get(relative(item.path, root))) for item in items]
    pairs = [(item, row) for item, row in found if row is not None]
    missing = saved.keys() - {row.path for _, row in pairs}
    strange = sorted(path for path in missing if not is_utf8(path))
    if strange:  # the name of a file that is gone, or a table that was saved in Latin-1
        raise SodapError(
            f"the saved splits name '{printable(strange[0])}', which is not in UTF-8 and no file "
            f"of domain '{domain}'; save the table as UTF-8 or delete the line"
        )
    return Matched(
        items=[item for item, _ in pairs],
        splits=[row.split for _, row in pairs],
        missing=len(missing),
        relabelled=sum(item.label != row.label for item, row in pairs),
    )


# ------------------------------------------------------------------ the authors' lists

LISTED = {
    "aptos": ("id_code", "diagnosis"),
    "ddr": ("id_code", "diagnosis"),
    "drd": ("image", "level"),
}
"""Domain -> the two columns of its files DOMAIN_{train,val,test}.csv."""


def read_list_rows(folder: Path) -> list[SplitRow]:
    """The authors' lists for diabetic retinopathy; they can be read where no image is.

    The path of a row is the image's name without a suffix. The patient is known for drd alone,
    whose images are called PATIENT_left and PATIENT_right.
    """
    rows: dict[tuple[str, str], SplitRow] = {}
    for domain, (name, level) in LISTED.items():
        for kind in SPLITS:
            for row in read_rows(folder / f"{domain}_{kind}.csv", [name, level]):
                image, grade = Path(row[name]).stem, row.known(row[level], STAGES)
                if (domain, image) in rows:
                    raise row.error(f"the image {image} is listed for the second time")
                patient = image.rpartition("_")[0] if domain == "drd" else ""
                rows[domain, image] = SplitRow(domain, image, STAGES[grade], grade, patient, kind)
    return list(rows.values())


def read_paper_lists(folder: Path) -> dict[str, dict[str, str]]:
    """Domain -> image id -> split."""
    found: dict[str, dict[str, str]] = {domain: {} for domain in LISTED}
    for row in read_list_rows(folder):
        found[row.domain][row.path] = row.split
    return found


def match_list(items: Sequence[Item], listed: Mapping[str, str]) -> Matched:
    """The items whose file name, without its suffix, is in a list of image ids."""
    pairs = [(item, listed[item.path.stem]) for item in items if item.path.stem in listed]
    return Matched(
        items=[item for item, _ in pairs],
        splits=[name for _, name in pairs],
        missing=len(listed) - len({item.path.stem for item, _ in pairs}),
    )
