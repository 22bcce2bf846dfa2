"""Checks of a run's splits in its report."""

from __future__ import annotations

import pytest

from sodap.reporting.checks import check_splits
from sodap.runs.record import DomainInfo, SplitCounts, StreamInfo
from sodap.streams.splits import SplitRow


@pytest.mark.parametrize(
    ("origins", "passed"), [(["", ""], False), (["one", "two"], True), ([], True)]
)
def test_groups_are_compared_in_all_domains_of_an_origin(origins: list[str], passed: bool) -> None:
    """Records of former versions do not have the origins."""
    counts = SplitCounts(train=[1, 1], val=[1, 1], test=[1, 1])
    domains = [DomainInfo(name=name, counts=counts) for name in ("a", "b")]
    info = StreamInfo(name="x", classes=["no", "yes"], domains=domains, origins=origins)
    rows = [
        SplitRow("a", "1.png", "no", "no", "patient 1", "train"),
        SplitRow("b", "2.png", "no", "no", "patient 1", "test"),
    ]
    _, files, groups, _ = check_splits(info, rows, None, "the images are not here")
    assert files.passed
    assert groups.passed == passed
    if not passed:
        assert "patient 1" in groups.details
