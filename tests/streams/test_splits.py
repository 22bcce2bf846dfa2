"""Splits: groups stay together, shares hold, and names alone decide; saved and published splits."""

from __future__ import annotations

import csv
import os
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sodap.errors import SodapError
from sodap.streams.items import SPLITS, Item, PlannedDomain, relative
from sodap.streams.paper_lists import match_list, read_list_rows, read_paper_lists
from sodap.streams.splits import (
    SplitRow,
    apply_splits,
    assign_splits,
    given_splits,
    read_splits,
    undersample,
    write_splits,
)

EIGHT_ONE_ONE = (8, 1, 1)
ROOT = Path("data")


def item(name: str, label: str = "a", group: str | None = None, kind: str | None = None) -> Item:
    return Item(ROOT / name, label, original=label, group=group, split=kind)


def split_items(
    items: list[Item],
    fractions: tuple[float, float, float],
    seed: int,
    *,
    grouped: bool,
    root: Path | None = None,
) -> list[str]:
    """The splits of a single domain."""
    domain = PlannedDomain("one", root, tuple(items))
    (done,) = assign_splits([domain], fractions, seed, grouped=grouped)
    assert done.items == domain.items
    return list(done.splits)


@st.composite
def collections(draw: st.DrawFn, pure: bool = False) -> list[Item]:
    """Images of up to four classes; some in groups; with `pure`, a group has one class."""
    count = draw(st.integers(1, 120))
    labels = "abcd"[: draw(st.integers(1, 4))]
    groups = draw(st.integers(1, 30))
    found = []
    for index in range(count):
        label = draw(st.sampled_from(labels))
        number = draw(st.integers(-10, groups))
        group = f"{label if pure else ''}{number}" if number >= 0 else None
        found.append(item(f"{label}/{index}.png", label, group))
    return found


def unit(one: Item) -> str:
    return one.group if one.group is not None else f"file {one.path}"


@given(collections(), st.integers(0, 3))
def test_no_group_is_in_two_splits(items: list[Item], seed: int) -> None:
    sides = defaultdict(set)
    for one, kind in zip(items, split_items(items, EIGHT_ONE_ONE, seed, grouped=True), strict=True):
        sides[unit(one)].add(kind)
    assert all(len(kinds) == 1 for kinds in sides.values())


@given(collections(), st.booleans(), st.randoms(use_true_random=False))
def test_splits_do_not_depend_on_the_order(
    items: list[Item], grouped: bool, shuffle: random.Random
) -> None:
    def splits(each: list[Item]) -> dict[Path, str]:
        kinds = split_items(each, EIGHT_ONE_ONE, 7, grouped=grouped, root=ROOT)
        return {one.path: kind for one, kind in zip(each, kinds, strict=True)}

    mixed = items.copy()
    shuffle.shuffle(mixed)
    assert splits(items) == splits(mixed)


@given(
    collections(pure=True),
    st.sampled_from([(8, 1, 1), (70, 15, 15), (6, 2, 2), (1, 1, 1), (9, 1, 0)]),
    st.integers(0, 3),
)
def test_every_class_has_its_share(
    items: list[Item], fractions: tuple[float, float, float], seed: int
) -> None:
    """Every split is within one group of its share of a class, and has the class if possible."""
    kinds = split_items(items, fractions, seed, grouped=True)
    for label in {one.label for one in items}:
        sizes = Counter(unit(one) for one in items if one.label == label)
        total, largest = sum(sizes.values()), max(sizes.values())
        found = Counter(kind for one, kind in zip(items, kinds, strict=True) if one.label == label)
        used = [name for name, part in zip(SPLITS, fractions, strict=True) if part]
        if len(sizes) >= len(used):
            assert all(found[name] for name in used)
        smallest = min(part for part in fractions if part) / sum(fractions) * total
        for name, part in zip(SPLITS, fractions, strict=True):
            # One group for each split may exceed the small shares; then train has less.
            slack = largest if name != "train" or smallest >= largest else 2 * largest
            assert abs(found[name] - part / sum(fractions) * total) <= slack


def test_splits_are_these_on_every_machine() -> None:
    items = [item(f"{index:02}.png", "ab"[index % 2], f"g{index // 3}") for index in range(30)]
    kinds = split_items(items, (6, 2, 2), 0, grouped=True, root=ROOT)
    assert " ".join(kinds[::3]) == "train train train val train test test train val train"
    other = split_items(items, (6, 2, 2), 1, grouped=True, root=ROOT)
    assert other != kinds


def test_splits_do_not_depend_on_the_location_of_the_folder() -> None:
    here = [item(f"{index}.png") for index in range(40)]
    there = [Item(Path("/mnt/disk") / one.path, one.label, one.original) for one in here]
    one = split_items(here, EIGHT_ONE_ONE, 0, grouped=False, root=ROOT)
    assert one == split_items(there, EIGHT_ONE_ONE, 0, grouped=False, root=Path("/mnt/disk") / ROOT)


def test_too_few_groups_train_first_then_test() -> None:
    alone = split_items([item("1.png")], EIGHT_ONE_ONE, 0, grouped=True)
    assert alone == ["train"]
    two = split_items([item("1.png"), item("2.png")], EIGHT_ONE_ONE, 0, grouped=True)
    assert sorted(two) == ["test", "train"]


def test_mixed_groups_keep_the_shares_of_a_rare_class() -> None:
    """Patients with a common and a rare label are not assigned by the common label alone."""
    items = [
        item(
            f"{patient}-{shot}.png", "rare" if patient < 40 and shot < 2 else "common", f"{patient}"
        )
        for patient in range(400)
        for shot in range(4)
    ]
    kinds = split_items(items, EIGHT_ONE_ONE, 0, grouped=True)
    found = Counter(k for one, k in zip(items, kinds, strict=True) if one.label == "rare")
    assert abs(found["val"] - 8) <= 2
    assert abs(found["test"] - 8) <= 2


# ------------------------------------------------------------------ several domains


def planned(
    items: list[Item], homes: list[str], splits: dict[str, list[str]] | None = None
) -> list[PlannedDomain]:
    """The items in the domains that `homes` names, one for each item."""
    return [
        PlannedDomain(
            name,
            ROOT,
            tuple(one for one, home in zip(items, homes, strict=True) if home == name),
            tuple((splits or {}).get(name, ())),
        )
        for name in sorted(set(homes))
    ]


def splits_of_groups(domains: list[PlannedDomain]) -> dict[str, set[str]]:
    found = defaultdict(set)
    for domain in domains:
        for one, split in zip(domain.items, domain.splits, strict=True):
            found[unit(one)].add(split)
    return found


@settings(max_examples=40)
@given(collections(), st.integers(0, 3), st.data())
def test_no_group_is_in_two_splits_of_any_domain(
    items: list[Item], seed: int, data: st.DataObject
) -> None:
    homes = [data.draw(st.sampled_from("xyz")) for _ in items]
    done = assign_splits(planned(items, homes), EIGHT_ONE_ONE, seed, grouped=True)
    assert all(len(splits) == 1 for splits in splits_of_groups(done).values())
    assert sum(len(domain.splits) for domain in done) == len(items)


@settings(max_examples=25)
@given(collections(), collections(), st.integers(0, 3))
def test_domains_without_common_groups_are_split_as_if_alone(
    one: list[Item], two: list[Item], seed: int
) -> None:
    """So the splits of streams without returning patients are what they have always been."""
    two = [
        item(f"two/{index}.png", each.label, each.group and f"other {each.group}")
        for index, each in enumerate(two)
    ]
    domains = planned([*one, *two], ["x"] * len(one) + ["y"] * len(two))
    for grouped in (True, False):
        done = assign_splits(domains, EIGHT_ONE_ONE, seed, grouped=grouped)
        for items, domain in zip((one, two), done, strict=True):
            alone = split_items(items, EIGHT_ONE_ONE, seed, grouped=grouped, root=ROOT)
            assert list(domain.splits) == alone


def test_patients_of_two_cameras_keep_the_shares_of_every_class() -> None:
    """All 200 patients return; a tenth of them is sick at the second camera only."""
    items = [
        item(
            f"{camera}-{patient}-{shot}.png",
            "sick" if camera == "b" and patient % 10 == 0 else "healthy",
            f"{patient}",
        )
        for patient in range(200)
        for camera in "ab"
        for shot in range(1 + (patient + ord(camera)) % 3)
    ]
    homes = [one.path.name[0] for one in items]
    done = assign_splits(planned(items, homes), EIGHT_ONE_ONE, 0, grouped=True)
    assert all(len(splits) == 1 for splits in splits_of_groups(done).values())
    for domain in done:
        for label, total in domain.counts().items():
            for split in ("val", "test"):
                found = domain.counts(split)[label]
                assert found > 0
                assert abs(found - total / 10) <= 3, (domain.name, label, split)


def test_returning_patients_keep_the_split_that_they_have() -> None:
    """One domain comes with splits; the other one is split around it."""
    items = [item(f"{home}{n}.png", "ab"[n % 2], f"{n}") for home in "xy" for n in range(40)]
    homes = [one.path.name[0] for one in items]
    given = ["test"] * 8 + ["val"] * 4 + ["train"] * 28
    done = assign_splits(planned(items, homes, {"x": given}), EIGHT_ONE_ONE, 0, grouped=True)
    assert [list(domain.splits) for domain in done] == [given, given]
    # Without returning patients, the shares are met again.
    new = [item(f"y/new {n}.png", "ab"[n % 2], f"new {n}") for n in range(360)]
    domains = planned([*items, *new], [*homes, *["y"] * 360], {"x": given})
    _, second = assign_splits(domains, EIGHT_ONE_ONE, 0, grouped=True)
    assert list(second.splits[:40]) == given
    assert Counter(second.splits) == {"train": 320, "val": 40, "test": 40}


def test_files_of_one_name_in_two_data_sets_are_different_files() -> None:
    domains = [
        PlannedDomain(name, Path(name), tuple(Item(Path(name) / "1.png", "a", "a") for _ in "x"))
        for name in ("one", "two")
    ]
    done = assign_splits(domains, EIGHT_ONE_ONE, 0, grouped=True)
    assert [domain.splits for domain in done] == [("train",), ("train",)]


@pytest.mark.parametrize("fractions", [(0, 1, 1), (-1, 1, 1), (1, -1, 1)])
def test_invalid_fractions(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(SodapError, match="three numbers"):
        split_items([item("1.png")], fractions, 0, grouped=False)


def test_given_splits() -> None:
    assert given_splits([item("1.png", kind="train"), item("2.png", kind="val")]) == [
        "train",
        "val",
    ]
    with pytest.raises(SodapError, match="1 of 2 images have no split"):
        given_splits([item("1.png", kind="train"), item("2.png")])
    with pytest.raises(SodapError, match="'dev'"):
        given_splits([item("1.png", kind="dev")])


@given(collections(), st.integers(0, 20), st.randoms(use_true_random=False))
def test_undersampling_keeps_exact_counts(
    items: list[Item], wanted: int, shuffle: random.Random
) -> None:
    before = Counter(one.label for one in items)
    kept = undersample(items, {"a": wanted}, 0)
    after = Counter(one.label for one in kept)
    assert after["a"] == min(wanted, before["a"])
    assert all(after[label] == before[label] for label in before if label != "a")

    level = undersample(items, "balance", 0)
    assert set(Counter(one.label for one in level).values()) == {min(before.values())}
    mixed = items.copy()
    shuffle.shuffle(mixed)
    assert set(undersample(mixed, "balance", 0)) == set(level)
    assert level == [one for one in items if one in set(level)]


# ------------------------------------------------------------------ saved splits

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12)


@given(
    rows=st.lists(
        st.builds(SplitRow, text, text, text, text, text, st.sampled_from(SPLITS)),
        unique_by=lambda row: (row.domain, row.path),
        max_size=8,
    )
)
def test_saved_splits_are_read_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[SplitRow]
) -> None:
    path = tmp_path_factory.mktemp("splits") / "splits.csv"
    write_splits(path, rows)
    assert read_splits(path) == rows


LATIN_1 = os.fsdecode(b"M\xfcller, Jos\xe9.png")
"""A name in Latin-1, which is not UTF-8."""


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    items = [item(name) for name in (LATIN_1, "M\u00fcller.png", *map(str, range(20)))]
    kinds = split_items(items, (8, 1, 1), 0, grouped=False, root=ROOT)
    assert Counter(kinds) == {"train": 18, "val": 2, "test": 2}
    assert len(undersample(items, {"a": 5}, 0, root=ROOT)) == 5
    rows = [
        SplitRow("d", relative(one.path, ROOT), "a", "a", "", kind)
        for one, kind in zip(items, kinds, strict=True)
    ]
    write_splits(tmp_path / "splits.csv", rows)
    assert os.fsencode(LATIN_1) in (tmp_path / "splits.csv").read_bytes()
    assert read_splits(tmp_path / "splits.csv") == rows
    found = apply_splits(items, rows, "d", root=ROOT)
    assert (found.items, found.splits, found.missing) == (items, kinds, 0)


def test_splits_saved_in_latin_1_are_refused(tmp_path: Path) -> None:
    """Otherwise their images would look like deleted files and be left out."""
    rows = [SplitRow("d", "M\u00fcller.png", "a", "a", "", "val")]
    path = tmp_path / "splits.csv"
    write_splits(path, rows)
    path.write_bytes(path.read_bytes().decode().encode("latin-1"))
    with pytest.raises(SodapError, match=r"name 'M\\udcfcller\.png', which is not in UTF-8"):
        apply_splits([item("M\u00fcller.png")], read_splits(path), "d", root=ROOT)
    write_splits(path, [SplitRow("d", "1.png", "gr\u00fcn", "a", "", "val")])
    path.write_bytes(path.read_bytes().decode().encode("latin-1"))
    with pytest.raises(SodapError, match="row 2 is not in UTF-8; save the table as UTF-8"):
        read_splits(path)


def test_splits_saved_by_excel(tmp_path: Path) -> None:
    rows = [
        SplitRow("d", "1.png", "a", "a", "", "val"),
        SplitRow("d", "2.png", "a", "a", "", "test"),
    ]
    path = tmp_path / "splits.csv"
    write_splits(path, rows)
    path.write_text(path.read_text(), "utf-8-sig", newline="\r\n")
    assert path.read_bytes().startswith(b"\xef\xbb\xbfdomain,")
    assert read_splits(path) == rows


def test_saved_splits_are_applied() -> None:
    rows = [
        SplitRow("d", "1.png", "a", "a", "", "test"),
        SplitRow("d", "2.png", "b", "b", "", "train"),
        SplitRow("d", "gone.png", "a", "a", "", "val"),
        SplitRow("e", "3.png", "a", "a", "", "val"),
    ]
    items = [item("2.png", "a"), item("1.png", "a"), item("3.png", "a")]
    found = apply_splits(items, rows, "d", root=ROOT)
    assert found.items == items[:2]
    assert found.splits == ["train", "test"]
    assert (found.missing, found.relabelled) == (1, 1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n", "is not a table of splits"),
        ("", "is not a table of splits"),
        ("domain,path,label,original,group,split\nd,p,a,a,,dev\n", "row 2"),
        ("domain,path,label,original,group,split\nd,p,a\n", "row 2"),
        ("domain,path,label,original,group,split\nd,p,a,a,,val\nd,p,a,a,,val\n", "twice"),
    ],
)
def test_damaged_splits(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "splits.csv"
    path.write_text(content)
    with pytest.raises(SodapError, match=words):
        read_splits(path)


def test_missing_files_of_splits(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="no file of splits"):
        read_splits(tmp_path / "nothing.csv")
    with pytest.raises(SodapError, match=r"cannot read .*a\\x00\.csv as a table of splits"):
        read_splits(tmp_path / "a\0.csv")


# ------------------------------------------------------------------ the authors' lists


def write_lists(folder: Path) -> None:
    for kind, number in zip(SPLITS, range(3), strict=True):
        (folder / f"aptos_{kind}.csv").write_text(f"id_code,diagnosis\nabc{number},4\n\n\n")
        (folder / f"ddr_{kind}.csv").write_text(f"id_code,diagnosis\n007-{number}-1.jpg,2\n")
        (folder / f"drd_{kind}.csv").write_text(f"image,level\n{number}_left,0\n")


def test_lists_are_matched_by_name(tmp_path: Path) -> None:
    write_lists(tmp_path)
    lists = read_paper_lists(tmp_path)
    assert lists["ddr"] == {"007-0-1": "train", "007-1-1": "val", "007-2-1": "test"}
    assert lists["aptos"] == {"abc0": "train", "abc1": "val", "abc2": "test"}
    found = match_list(
        [item("x/abc2.png"), item("x/abc9.png"), item("y/abc0.jpeg")], lists["aptos"]
    )
    assert found.splits == ["test", "train"]
    assert found.missing == 1


@pytest.mark.parametrize(("line", "words"), [("abc9,7", "label '7'"), ("abc0,1", "second time")])
def test_wrong_lines_in_lists(tmp_path: Path, line: str, words: str) -> None:
    write_lists(tmp_path)
    (tmp_path / "aptos_val.csv").write_text(f"id_code,diagnosis\n{line}\n")
    with pytest.raises(SodapError, match=words):
        read_paper_lists(tmp_path)


def test_the_authors_lists(shared: Path) -> None:
    """Counts, compared with another CSV reader."""
    rows = read_list_rows(shared / "paper/splits")
    for domain, sizes in (
        ("aptos", (2930, 366, 366)),
        ("ddr", (10017, 1252, 1253)),
        ("drd", (11452, 1432, 1432)),
    ):
        assert (
            tuple(sum(r.domain == domain and r.split == s for r in rows) for s in SPLITS) == sizes
        )
    with (shared / "paper/splits/drd_test.csv").open() as file:
        names = {line["image"] for line in csv.DictReader(file)}
    assert names == {row.path for row in rows if (row.domain, row.split) == ("drd", "test")}
    patients = {row.group for row in rows if (row.domain, row.split) == ("drd", "train")}
    assert sum(name.split("_")[0] in patients for name in names) == 752
