"""The tables in docs/ say what the kept records say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tools import results


def test_the_page_follows_from_the_records() -> None:
    assert results.PAGE.read_text("utf-8") == results.page(), "run: python -m tools.results write"


def test_every_record_says_where_it_comes_from() -> None:
    assert results.measured()
    for file in results.measured():
        result = json.loads(file.read_text("utf-8"))
        assert result["command"][0] == "sodap"
        assert result["environment"]["processor"]
        commit = result["environment"]["commit"]
        assert commit
        assert "+changes" not in commit, f"{file.name} was measured on uncommitted code"
        assert file.stat().st_size < 100_000


def test_the_demo_forgets_less_at_no_worse_accuracy() -> None:
    methods = results.load()["digits"]
    ours, plain = methods["residual-sodap"], methods["sequential"]
    assert len(ours) == len(plain) >= 3

    def gain(metric: str) -> tuple[float, float]:
        pairs = zip(results.values(ours, metric), results.values(plain, metric), strict=True)
        return results.interval([a - b for a, b in pairs])

    mean, half = gain("average_forgetting")
    assert mean + half < 0
    assert gain("average_accuracy")[0] >= 0


def test_intervals_are_students() -> None:
    mean, half = results.interval([1.0, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3)
    assert half == pytest.approx(4.302652729749464 * np.std([1, 2, 4], ddof=1) / 3**0.5)
