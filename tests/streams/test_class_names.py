"""Doubtful classes: typos are found, names that only look alike are not, users can confirm."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from sodap.errors import SodapError
from sodap.streams import load_stream, make_plan
from sodap.streams.class_names import listing, parse_classes, similar


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("benign", "begnin"),
        ("benign", "Benign"),
        ("malignant", "malignent"),
        ("light bulb", "light_bulbs"),
        ("cat", "cats"),
        ("glass", "glasses"),
        ("T-cell", "t cell"),
    ],
)
def test_similar_names(one: str, other: str) -> None:
    assert similar(one, other)
    assert similar(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NPDR", "PDR"),
        ("normal", "abnormal"),
        ("grade 1", "grade 2"),
        ("type A", "typeB"),
        ("stage II", "stage III"),
        ("HER2+", "HER2-"),
        ("nv", "df"),
        ("cat", "bat"),
        ("benign", "malignant"),
    ],
)
def test_different_names(one: str, other: str) -> None:
    assert not similar(one, other)
    assert not similar(other, one)


def write_classes(root: Path, **domains: str) -> Path:
    """Twelve images of each of the classes, which are given as `one,two`."""
    for shade, (domain, classes) in enumerate(domains.items()):
        for number, label in enumerate(classes.split(",")):
            (root / domain / label).mkdir(parents=True)
            for index in range(12):
                colour = (20 * index, 40 * number, 90 * shade)
                Image.new("RGB", (16, 16), colour).save(root / domain / label / f"{index}.png")
    return root


def doubts(root: Path, **domains: str) -> list[str]:
    return list(map(str, make_plan(str(write_classes(root, **domains))).doubtful_classes()))


def test_a_typo_in_one_domain(tmp_path: Path) -> None:
    found = doubts(tmp_path, first="benign,malignant", second="begnin,malignant", third="benign")
    assert found == ["the class 'begnin' (12 images, only in second), perhaps a typo for 'benign'"]


def test_a_typo_in_one_of_two_domains(tmp_path: Path) -> None:
    """Neither word is in both domains; only the one with the suggestion is named."""
    (found,) = doubts(tmp_path, first="cat,dog", second="catt,dog")
    assert found == "the class 'catt' (12 images, only in second), perhaps a typo for 'cat'"


def test_a_typo_in_the_only_domain(tmp_path: Path) -> None:
    (found,) = doubts(tmp_path, only="benign,begnin,malignant")
    assert "'begnin'" in found
    assert "'benign'" in found


def test_a_class_of_one_domain_only(tmp_path: Path) -> None:
    found = doubts(tmp_path, first="cat,dog", second="bird,cat,dog")
    assert found == ["the class 'bird' (12 images, only in second)"]


def test_classes_of_all_domains_are_not_doubtful(tmp_path: Path) -> None:
    assert not doubts(tmp_path, first="NPDR,PDR,normal", second="NPDR,PDR,normal")


def test_a_stream_is_refused_until_its_classes_are_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    mine = str(write_classes(tmp_path / "mine", first="benign,bad one", second="begnin,bad one"))
    with pytest.raises(SodapError) as refused:
        load_stream(mine, 16)
    assert "perhaps a typo for 'benign'" in str(refused.value)
    assert "'classes=bad one,begnin,benign'" in str(refused.value)
    for confirmed in ("bad one,begnin,benign", ["bad one", "begnin", "benign"], "all"):
        assert load_stream(mine, 16, classes=confirmed).classes == ("bad one", "begnin", "benign")
    other_order = load_stream(mine, 16, classes="benign, begnin, bad one")
    assert other_order.classes == ("benign", "begnin", "bad one")
    with pytest.raises(SodapError, match="begnin, perhaps a typo for 'benign', which is not among"):
        load_stream(mine, 16, classes="benign,bad one")


def test_lists_of_classes() -> None:
    assert parse_classes(None) is None
    assert parse_classes("a, b") == ["a", "b"]
    wrong: str | list[str]
    for wrong in ("a", "a,", "a,a", []):
        with pytest.raises(SodapError, match="classes takes two or more"):
            parse_classes(wrong)
    assert listing(["a", "b"]) == "a,b"
    assert listing(["a", "b, c"]) == "all"
    assert listing([str(number) for number in range(100)]) == "all"
