"""`sodap report` and the page of `sodap demo`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from sodap.cli.demo import run_demo
from sodap.cli.report import run_report
from sodap.errors import SodapError
from tests.conftest import TINY

from .page_reader import PageReader
from .records import a_record, write


def report(*places: Path, out: Path | None = None, against: str | None = None) -> str:
    """What the command prints."""
    console = Console(file=io.StringIO(), width=500)
    run_report(console, places, out, images=False, composed=False, against=against)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_where_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run" / "record.json", a_record("ridge"))
    write(tmp_path / "stopped" / "record.json", a_record("l2p", status="interrupted"))
    page = tmp_path / "run" / "report" / "index.html"
    assert str(page) in report(tmp_path / "run")
    assert "made with --no-images" in page.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    report(tmp_path / "run", tmp_path / "stopped")
    assert (tmp_path / "report" / "index.html").is_file()
    report(tmp_path / "run", out=tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "index.html").is_file()


def test_mistakes(tmp_path: Path) -> None:
    write(tmp_path / "kept.json", a_record("ridge"))
    with pytest.raises(SodapError, match="cannot compare with 'ridge': there is only one run"):
        report(tmp_path / "kept.json", out=tmp_path / "page", against="ridge")
    assert not (tmp_path / "page").exists()
    with pytest.raises(SodapError, match="does not exist"):
        report(tmp_path / "nothing")
    with pytest.raises(SodapError, match="which is a file"):
        report(tmp_path / "kept.json", out=tmp_path / "kept.json")


@pytest.mark.slow
def test_the_demo_writes_a_comparison(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=500)
    write(tmp_path / "sequential" / "config.json", {"of": "an earlier demo"})
    write(tmp_path / "sequential" / "model" / "old.json", {})
    run_demo(console, tmp_path, 1, ["stream=digits-mini", "epochs=1", *TINY])
    assert not (tmp_path / "sequential" / "model" / "old.json").exists()
    page = PageReader((tmp_path / "index.html").read_text("utf-8"))
    for text in (
        "2 runs of 2 methods on digits-mini",
        "residual-sodap on digits-mini, seed 1",
        "sequential on digits-mini, seed 1",
        "Average forgetting",
        "What was forgotten",
        "Test images of each domain",
    ):
        assert text in page.text
    assert "residual-sodap/report/index.html" in page.links
    single = PageReader((tmp_path / "residual-sodap/report/index.html").read_text("utf-8"))
    assert "Growth of the prompt pool" in single.text
