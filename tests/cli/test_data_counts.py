"""The table of counts that `sodap data check` prints, on a terminal of 80 columns."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from rich.console import Console

from sodap.cli import data
from sodap.streams.check import CheckResult
from sodap.streams.items import SPLITS

LARGE = 123_456


def printed(
    classes: tuple[str, ...],
    domains: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[list[str]]:
    """The cells of each line; class c of domain d has 100 d + 10 c + s images in split s."""
    counts: dict[tuple[str, str], Counter[str]] = {
        (domain, kind): Counter({label: 100 * d + 10 * c + s for c, label in enumerate(classes)})
        for d, domain in enumerate(domains)
        for s, kind in enumerate(SPLITS)
    }
    counts[domains[0], "train"][classes[0]] = LARGE
    monkeypatch.setattr(data, "console", Console(width=80))
    data.show_result(CheckResult("mine", classes, counts))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    split = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]
    return [cells for cells in split if cells]


@pytest.mark.parametrize("count", [2, 10, 60])
def test_every_class_has_a_line_with_its_full_name(
    count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = tuple(f"remote controls, kind {number}" for number in range(count))
    head, *lines = printed(classes, ("clinic", "van [x]"), monkeypatch, capsys)
    assert head == ["domain", "class", "train", "val", "test", "all"]
    assert len(lines) == 2 * (count + 1)
    assert lines[0] == ["clinic", classes[0], str(LARGE), "1", "2", str(LARGE + 3)]
    assert lines[1] == ["", classes[1], "10", "11", "12", "33"]
    assert [line[1] for line in lines[: count + 1]] == [*classes, "all"]
    second = lines[count + 1 :]
    assert second[0] == ["van [x]", classes[0], "100", "101", "102", "303"]
    train = sum(100 + 10 * c for c in range(count))
    totals = (train, train + count, train + 2 * count)
    assert second[-1] == ["", "all", *map(str, (*totals, sum(totals)))]


def test_long_names_are_wrapped_but_numbers_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    domain, label = "the-domain-" * 9, "the class " * 9
    _, *lines = printed((label, "b"), (domain,), monkeypatch, capsys)
    assert "".join(line[0] for line in lines) == domain
    assert lines[0][2:] == [str(LARGE), "1", "2", str(LARGE + 3)]
