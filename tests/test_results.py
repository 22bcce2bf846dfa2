"""The tables in docs/ say what the kept records say, and a record can be kept only whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import page
from tools import results

from sodap.evaluation import summary
from tests.reporting.made_runs import a_record, write

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_the_page_follows_from_the_records() -> None:
    assert results.PAGE.read_text("utf-8") == results.page(), "run: python -m tools.results write"


def test_the_summary_follows_from_the_records() -> None:
    content = json.loads(results.SUMMARY.read_text("utf-8"))
    assert content == results.summary(), "run: python -m tools.results write"
    for methods in content.values():
        assert "constant" in methods
        for rows in methods.values():
            assert {"average_accuracy", "average_forgetting", "final_average"} <= rows.keys()


def test_every_record_says_where_it_comes_from() -> None:
    assert results.measured()
    for file in results.measured():
        result = json.loads(file.read_text("utf-8"))
        assert result["command"][0] == "sodap"
        assert result["environment"]["processor"]
        commit = result["environment"]["commit"]
        assert commit
        assert "+changes" not in commit, f"{file.name} was measured on uncommitted code"
        assert file.stat().st_size <= results.LIMIT
        config = result["config"]
        assert file.stem == f"{config['method']}-s{config['seed']}"
        assert file.parent.name == config["stream"] == result["stream"]["name"]


def test_the_demo_forgets_less_at_no_worse_accuracy() -> None:
    table = results.tables()["digits"]
    ours, plain = "residual-sodap", "sequential"
    assert len(table.seeds(ours)) == len(table.seeds(plain)) >= 3
    forgetting = table.difference(ours, plain, "average_forgetting")
    assert forgetting is not None
    assert forgetting.sign == -1
    gain = table.difference(ours, plain, "average_accuracy")
    assert gain is not None
    assert gain.mean >= 0


# ---------------------------------------------------------------------- keeping

SEARCH = {
    "what": "final average accuracy on the validation images of the first 2 stages",
    "budget": 4,
    "seed": 999_983,
    "candidates": [
        {"setting": {"lr": 0.001}, "score": 0.5},
        {"setting": {"lr": 0.01}, "score": None},
    ],
    "chosen": {"lr": 0.001},
}


def run_record(method: str, seed: int, level: float = 0.8, **changes: Any) -> dict[str, Any]:
    record = a_record(method, seed, level)
    training = {"epochs": 20, "batch_size": 64, "lr": 0.001}
    record["command"] = ["/somewhere/bin/sodap", "bench", "table1"]
    record["config"] |= {"training": training}
    record["environment"] = {"commit": COMMIT, "gpu": "Abacus 9", "processor": "Abacus x 2"}
    record["backbone"] |= {"sha256": "ab12"}
    record["jobs"] = 4
    record["search"] = SEARCH if method == "sequential" else None
    for stage, domain in zip(record["stages"], ("north", "south"), strict=True):
        epochs = 3 if method == "sequential" else 0
        stage |= {"domain": domain, "epochs": epochs, "seconds": 1.23, "begun": {}, "ended": {}}
        stage["peak_gpu_bytes"] = 7
    return record | changes


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    return tmp_path


def test_a_grid_is_kept_and_told(empty: Path) -> None:
    levels = {"rp-ridge": 0.9, "residual-sodap": 0.8, "sequential": 0.5}
    for method, level in levels.items():
        for seed in range(5):
            path = empty / "runs" / "weather" / method / f"s{seed}" / "record.json"
            write(path, run_record(method, seed, level))
    files = results.keep([str(empty / "runs")])
    assert len(files) == 15
    assert all(file.stat().st_size < 3000 for file in files)
    kept = json.loads((empty / "results" / "weather" / "rp-ridge-s3.json").read_text())
    original = run_record("rp-ridge", 3, 0.9)
    assert kept["command"] == ["sodap", "bench", "table1"]
    assert kept["R"] == original["R"]
    assert kept["throughput"] == original["throughput"]
    assert kept["stages"][1]["stored_bytes"] == 20_560
    assert "search" not in kept
    searches = json.loads((empty / "results" / "weather" / "search.json").read_text())
    assert searches == {"sequential": SEARCH}

    found = results.summary()["weather"]
    accuracies = [
        summary(run_record("rp-ridge", seed, 0.9)["R"]["accuracy"])["average_accuracy"]
        for seed in range(5)
    ]
    mean = sum(a or 0.0 for a in accuracies) / 5
    assert found["rp-ridge"]["average_accuracy"]["mean"] == pytest.approx(mean, abs=1e-6)
    assert found["rp-ridge"]["seeds"] == 5
    low, high = found["rp-ridge"]["average_accuracy"]["interval"]
    assert low < mean < high
    assert found["constant"]["final_average"]["mean"] == pytest.approx(0.65)

    page = results.page()
    assert "`rp-ridge` has the highest AvgACC, 0.900" in page
    assert "| `sequential` | lr=0.001: 0.500, lr=0.01: broke | lr=0.001 |" in page
    assert "- `sodap bench table1` (residual-sodap, rp-ridge, sequential)" in page
    assert "Abacus 9, 4 runs at a time" in page
    assert "| `residual-sodap` minus |" in page
    assert "| `rp-ridge` minus |" in page
    assert "| constant | – | 0.525 |" in page
    assert "no better is `sequential`." in page


def test_a_run_without_a_commit_needs_one_to_be_given(empty: Path) -> None:
    record = run_record("ridge", 0)
    record["environment"] |= {"commit": None}
    write(empty / "record.json", record)
    with pytest.raises(SystemExit, match="--commit"):
        results.keep([str(empty / "record.json")])
    with pytest.raises(SystemExit, match="full hash"):
        results.keep([str(empty / "record.json")], "abc")
    (file,) = results.keep([str(empty / "record.json")], COMMIT)
    environment = json.loads(file.read_text())["environment"]
    assert environment["commit"] == COMMIT
    assert environment["commit_given"] is True


def test_a_commit_cannot_be_talked_away(empty: Path) -> None:
    write(empty / "record.json", run_record("ridge", 0))
    with pytest.raises(SystemExit, match=f"was of commit {COMMIT}"):
        results.keep([str(empty / "record.json")], "f" * 40)
    (file,) = results.keep([str(empty / "record.json")], COMMIT)
    assert "commit_given" not in json.loads(file.read_text())["environment"]


def test_two_searches_of_one_method_do_not_go_together(empty: Path) -> None:
    write(empty / "a" / "record.json", run_record("sequential", 0))
    other = SEARCH | {"chosen": {"lr": 0.01}}
    write(empty / "b" / "record.json", run_record("sequential", 1, search=other))
    with pytest.raises(SystemExit, match="two different searches"):
        results.keep([str(empty)])


def test_dense_json_is_the_same_json() -> None:
    content = {
        "R": [[0.5, 1], [2, 3]],
        "words": ["a, b", "[ c ]"],
        "none": [],
        "deep": [{"x": [1]}],
    }
    text = results.dense(content)
    assert json.loads(text) == content
    assert "[0.5, 1]" in text


def test_the_page_of_speed_follows_from_its_records() -> None:
    assert page.PAGE.read_text("utf-8") == page.page(), "run: python -m benchmarks.page"
