"""`sodap report` as a user calls it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.reporting.made_runs import a_record, write

from sodap.cli.report import run_report
from sodap.errors import SodapError


def test_one_run_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    write(tmp_path / "kept.json", a_record("ridge", 0, 0.9))
    out = tmp_path / "page"
    with pytest.raises(SodapError, match="one run alone, and nothing to compare with 'ridge'"):
        run_report(
            Console(file=io.StringIO()),
            [tmp_path / "kept.json"],
            out,
            images=False,
            composed=False,
            against="ridge",
        )
    assert not out.exists()
