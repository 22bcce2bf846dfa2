"""docs/performance.md shows every record that exists, and names missing ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import page
from benchmarks.profile import COLUMNS, KINDS

MACHINE = {
    "processor": "a processor",
    "gpu": None,
    "commit": "0123456789",
    "packages": {"torch": "2.11.0"},
}
STEP = {
    "milliseconds": 12.5,
    "watched_milliseconds": 20.0,
    "kernels": 2,
    "sums": dict.fromkeys(KINDS, 0.0) | {"attention": 5.0, "idle": 15.0},
    "line": "a" * (COLUMNS // 4) + "." * (COLUMNS * 3 // 4),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page, "RECORDS", tmp_path)
    monkeypatch.setattr(page, "PICTURES", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    return tmp_path


def keep(home: Path, name: str, **content: Any) -> None:
    (home / f"{name}.json").write_text(json.dumps({"machine": MACHINE, **content}), "utf-8")


def test_a_profile_has_a_picture_and_a_table(home: Path) -> None:
    keep(home, "profile-cpu", backbone="micro", batch=4, steps={"plain": STEP, "fast": STEP})
    page.main()
    text = (home / "page.md").read_text("utf-8")
    assert "![One training step on a CPU, by kind of work](img/profile-cpu.svg)" in text
    assert "| fast | 12.50 | 5.00 | 0.00 | 0.00 | 0.00 | 0.00 | 15.00 |" in text
    assert "plain: 20.0 ms, 75% idle" in (home / "profile-cpu.svg").read_text("utf-8")
    assert not (home / "profile-gpu.svg").exists()


def test_missing_runs_of_the_papers_sizes_are_named(home: Path) -> None:
    assert "measured runs of the paper's full sizes" in page.page()
    keep(home, "paper-sized", figures={"dr_minutes": 2.5}, targets={}, note="As it was run.")
    text = page.page()
    assert "measured runs of the paper's full sizes" not in text
    assert "| `dr_minutes` | 2.500 |  |" in text
    assert "As it was run." in text
