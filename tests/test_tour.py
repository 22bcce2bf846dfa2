"""The notebook runs from top to bottom, without a warning, and carries no stale output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
TOUR = DOCS / "tour.ipynb"


def cells(kind: str) -> list[str]:
    notebook: dict[str, Any] = json.loads(TOUR.read_text("utf-8"))
    assert notebook["nbformat"] == 4
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == kind]


def test_it_is_committed_without_outputs() -> None:
    notebook = json.loads(TOUR.read_text("utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert TOUR.stat().st_size < 20_000


def test_what_it_links_to_exists() -> None:
    for text in cells("markdown"):
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (DOCS / target).exists(), target


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = tmp_path / "tour.py"
    code = "\n\n".join(cells("code"))
    assert "epochs=4, patience=4" in code
    script.write_text(code.replace("epochs=4, patience=4", "epochs=2, patience=2"), "utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    table = dict(re.findall(r"^([\w-]+) +(0\.\d{3}|1\.000) ", ran.stdout, flags=re.M))
    assert table.keys() == {"residual-sodap", "sequential", "ridge"}
    assert all(float(value) > 0.5 for value in table.values()), "it learned ten digits"
    before, after = re.findall(r"before (\S+), first batch after (\S+)", ran.stdout)[0]
    assert float(after) > 3 * float(before)
    assert [path.name for path in tmp_path.iterdir()] == ["tour.py"]
