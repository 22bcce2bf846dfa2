"""Folds: every image is tested once, groups stay together, and every class is spread evenly."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sodap.errors import SodapError
from sodap.streams import load_stream, make_plan
from sodap.streams.folds import Fold, all_folds
from sodap.streams.items import Item, PlannedDomain
from sodap.streams.splits import assign_splits

ROOT = Path("data")


@st.composite
def two_domains(draw: st.DrawFn, pure: bool = False) -> list[PlannedDomain]:
    """Two domains of one origin; groups are in both, unless `pure`: one class of one domain."""
    domains = []
    for domain in "xy":
        items = []
        for index in range(draw(st.integers(8, 60))):
            label, number = draw(st.sampled_from("abc")), draw(st.integers(-9, 12))
            name = f"{domain}{label}{number}" if pure else str(number)
            group = name if number >= 0 else None
            items.append(Item(ROOT / domain / f"{index}.png", label, label, group))
        domains.append(PlannedDomain(domain, ROOT, tuple(items)))
    return domains


def deal(domains: list[PlannedDomain], count: int, seed: int = 0) -> list[list[PlannedDomain]]:
    return [
        assign_splits(domains, (7, 1, 2), seed, grouped=True, fold=fold)
        for fold in all_folds(count)
    ]


@given(two_domains(), st.integers(2, 6), st.integers(0, 2))
@settings(max_examples=40)
def test_every_image_is_tested_once_and_no_group_is_divided(
    domains: list[PlannedDomain], count: int, seed: int
) -> None:
    tested: Counter[Path] = Counter()
    for fold in deal(domains, count, seed):
        splits: dict[str, set[str]] = {}
        for domain in fold:
            tested.update(item.path for item in domain.in_split("test"))
            for item, split in zip(domain.items, domain.splits, strict=True):
                splits.setdefault(item.group or str(item.path), set()).add(split)
        assert all(len(found) == 1 for found in splits.values())
    assert tested == Counter(item.path for domain in domains for item in domain.items)


@given(two_domains(pure=True), st.integers(2, 6))
@settings(max_examples=40)
def test_folds_have_their_share_of_every_class_within_one_group(
    domains: list[PlannedDomain], count: int
) -> None:
    folds = deal(domains, count)
    for place, domain in enumerate(domains):
        for label, total in Counter(item.label for item in domain.items).items():
            groups = Counter(
                item.group or str(item.path) for item in domain.items if item.label == label
            )
            held = [fold[place].counts("test")[label] for fold in folds]
            assert sum(held) == total
            assert max(held) - min(held) <= max(groups.values())


def test_names_alone_decide() -> None:
    items = [Item(ROOT / f"{n}.png", "ab"[n % 2], "", str(n // 3)) for n in range(60)]
    mixed = random.Random(0).sample(items, len(items))
    (one,) = deal([PlannedDomain("x", ROOT, tuple(items))], 5)[2]
    (two,) = deal([PlannedDomain("x", ROOT, tuple(mixed))], 5)[2]
    assert one.in_split("test") == two.in_split("test")
    assert one.in_split("val") == two.in_split("val")
    (other,) = deal([PlannedDomain("x", ROOT, tuple(items))], 5, seed=1)[2]
    assert one.in_split("test") != other.in_split("test")


def test_a_group_that_is_only_tested_elsewhere_is_learned_in_no_fold() -> None:
    """As in a protocol whose last domain is never learned."""
    items = tuple(Item(ROOT / f"{n}.png", "a", "a", f"g{n // 2}") for n in range(20))
    unseen = Item(ROOT / "unseen.png", "a", "a", "g0")
    known = PlannedDomain("y", ROOT, (unseen,), ("test",), learned=False)
    for own, other in deal([PlannedDomain("x", ROOT, items), known], 5):
        assert own.splits[:2] == ("test", "test")
        assert other == known


@pytest.mark.parametrize("text", ["0/5", "6/5", "1/1", "1", "a/b", "1/1000", "-1/5", "1/5 "])
def test_what_is_no_fold(text: str) -> None:
    with pytest.raises(SodapError, match="no fold"):
        Fold.parse(text)
    assert str(Fold.parse("2/5")) == "2/5"


def test_a_folder_by_fold(tmp_path: Path) -> None:
    for domain in ("one", "two"):
        for label in ("cat", "dog"):
            for number in range(6):
                path = tmp_path / "pets" / domain / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    name = str(tmp_path / "pets")
    plans = [make_plan(name, fold=str(fold)) for fold in all_folds(3)]
    tested = [row.path for plan in plans for row in plan.rows() if row.split == "test"]
    assert sorted(tested) == sorted(row.path for row in plans[0].rows())
    assert all(
        Counter(d.splits) == {"train": 6, "val": 2, "test": 4} for p in plans for d in p.domains
    )
    stream = load_stream(name, 8, fold="1/3")
    assert [row.path for row in stream.rows] == [row.path for row in plans[0].rows()]


def test_splits_that_are_given_are_not_replaced(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    table = tmp_path / "own.csv"
    rows = "".join(f"x.png,{label},d,{split}\n" for label, split in [("a", "train")])
    table.write_text(f"path,label,domain,split\n{rows}")
    with pytest.raises(SodapError, match="come with splits"):
        make_plan(str(table), fold="1/2")
    with pytest.raises(SodapError, match="without folds"):
        load_stream("digits-mini", fold="1/2")
