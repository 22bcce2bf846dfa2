"""`sodap ablate` as a user meets it: real processes, and a table that repeats the records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_cli import call


@pytest.mark.slow
def test_two_removals_of_a_tiny_stream(tmp_path: Path) -> None:
    command = ["ablate", "demo", "stream=digits-mini", "epochs=1", "batch_size=16"]
    command += ["--only", "qe,uw", "--seeds", "1", "--out", "out"]
    first = call(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "3 runs to do" in first.stdout

    out = tmp_path / "out"
    rows = {row["variant"]: row for row in json.loads((out / "ablation.json").read_text())["rows"]}
    assert list(rows) == ["full", "qe", "uw"]
    scores = {}
    for name, switch in (("full", None), ("qe", "query_enhancer"), ("uw", "uw")):
        record = json.loads((out / name / "s0" / "record.json").read_text())
        options = record["config"]["options"]
        assert [key for key in ("query_enhancer", "uw") if not options[key]] == (
            [switch] if switch else []
        )
        scores[name] = record["metrics"]["accuracy"]["average_accuracy"]
        assert rows[name]["average_accuracy"]["mean"] == scores[name]
    points = 100 * (scores["qe"] - scores["full"])
    assert rows["qe"]["average_accuracy"]["points"] == pytest.approx(points)
    shown = [line for line in first.stdout.splitlines() if "query enhancer" in line][-1]
    assert f"{scores['qe']:.3f}" in shown
    assert f"{round(points, 1) + 0.0:+.1f}" in shown

    again = call(*command, cwd=tmp_path)
    assert "0 runs to do; 3 were finished before" in again.stdout
    assert again.stdout.count(shown) == 1


def test_a_mistake_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    found = call("ablate", "default", "--only", "everything", cwd=tmp_path)
    assert found.returncode == 2
    assert "no variant is called 'everything'" in found.stderr
    assert found.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())
