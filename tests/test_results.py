"""The tables in docs/ follow from the kept results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks import page
from tools import results, results_page

from sodap.runs.reading import read_record
from sodap.runs.record import RunRecord, SearchInfo
from tests.reporting.records import a_record, edited, write

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_the_page_follows_from_the_records() -> None:
    assert results.PAGE.read_text("utf-8") == results_page.page(), (
        "run: python -m tools.results write"
    )


def test_the_effects_follow_from_the_records() -> None:
    text = results.METHODS.read_text("utf-8")
    assert text == results_page.with_effects(text), "run: python -m tools.results write"


def test_every_run_has_the_settings_that_its_search_chose() -> None:
    for file in results.result_files():
        config = read_record(file).config
        search = results.searches_of(config.stream).get(config.method)
        if search is not None:
            have = config.training.model_dump(mode="json") | config.options
            assert have | search.chosen == have, file


def test_the_summary_follows_from_the_records() -> None:
    content = json.loads(results.SUMMARY.read_text("utf-8"))
    assert content == results_page.summary(), "run: python -m tools.results write"
    for methods in content.values():
        assert "constant" in methods
        for rows in methods.values():
            assert {"average_accuracy", "average_forgetting", "final_average"} <= rows.keys()


def test_every_result_has_its_origin() -> None:
    assert results.result_files()
    for file in results.result_files():
        record = read_record(file)
        environment, config = record.environment, record.config
        assert record.command[0] == "sodap"
        assert environment is not None
        assert environment.processor
        assert environment.commit
        assert "+changes" not in environment.commit, f"{file.name} ran uncommitted code"
        assert file.stat().st_size <= results.MAX_BYTES
        assert file.stem == f"{record.row}-s{config.seed}"
        assert file.parent.name == config.stream == record.stream.name


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
    "beyond": 2,
    "seed": 999_983,
    "candidates": [
        {"setting": {"lr": 0.001}, "score": 0.5},
        {"setting": {"lr": 0.01}, "score": None},
    ],
    "chosen": {"lr": 0.001},
}


def run_record(method: str, seed: int, level: float = 0.8, **more: Any) -> RunRecord:
    epochs = 3 if method == "sequential" else 0
    edits = {
        "config.training.epochs": 20,
        "environment.commit": COMMIT,
        "environment.gpu": "Abacus 9",
        "stages.0.epochs": epochs,
        "stages.1.epochs": epochs,
    }
    search = SEARCH if method == "sequential" else None
    return a_record(method, seed, level, edits=edits, **({"jobs": 4, "search": search} | more))


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
    assert kept["R"]["accuracy"] == original.R.accuracy
    assert kept["throughput"] == original.throughput.model_dump()
    assert kept["stages"][1]["stored_bytes"] == 20_560
    assert "search" not in kept
    searches = json.loads((empty / "results" / "weather" / "search.json").read_text())
    assert searches == {"sequential": SEARCH}

    found = results_page.summary()["weather"]
    metrics = [run_record("rp-ridge", seed, 0.9).metrics.accuracy for seed in range(5)]
    mean = sum(each.average_accuracy for each in metrics if each) / 5
    assert found["rp-ridge"]["average_accuracy"]["mean"] == pytest.approx(mean, abs=1e-6)
    assert found["rp-ridge"]["seeds"] == 5
    low, high = found["rp-ridge"]["average_accuracy"]["interval"]
    assert low < mean < high
    assert found["constant"]["final_average"]["mean"] == pytest.approx(0.65)

    page = results_page.page()
    assert "`rp-ridge` has the highest AvgACC, 0.900" in page
    assert "| `sequential` | lr=0.001: 0.500, lr=0.01: broke | lr=0.001 |" in page
    assert "- `sodap bench table1` (residual-sodap, rp-ridge, sequential)" in page
    assert "Abacus 9, 4 runs at a time" in page
    assert "| minus `residual-sodap` |" in page
    assert "| constant | – | 0.525 |" in page
    assert "no better: `sequential`." in page


def keep_grid(empty: Path, records: list[RunRecord]) -> list[Path]:
    shutil.rmtree(empty / "runs", ignore_errors=True)
    for number, record in enumerate(records):
        write(empty / "runs" / str(number) / "record.json", record)
    return results.keep([str(empty / "runs")])


def test_a_variant_is_told_by_its_effect_and_ranked_nowhere(empty: Path) -> None:
    name = "sequential@faithful"
    gains = (0.10, 0.11, 0.12)
    plain = [run_record("sequential", seed, 0.5) for seed in range(5)]
    changed = [
        run_record("sequential", seed, 0.5 + gain, variant=name) for seed, gain in enumerate(gains)
    ]
    files = keep_grid(empty, plain + changed)
    assert [file.name for file in files[-3:]] == [f"{name}-s{seed}.json" for seed in range(3)]
    assert results_page.summary()["weather"].keys() == {"sequential", "constant"}
    assert name not in results_page.page()
    before, after = f"words\n{results_page.BEGIN}\n", f"{results_page.END}\nmore words\n"
    written = results_page.with_effects(f"{before}old\n{after}")
    assert written.startswith(before)
    assert written.endswith(after)
    (row,) = [line for line in written.splitlines() if name in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["weather", f"`{name}`", "3", "0.610"]
    assert cells[4].startswith("**+11.0 (")
    assert cells[5].startswith("+0.0 (")
    assert results_page.with_effects(written) == written
    assert "another commit" not in written
    keep_grid(empty, [edited(r, edits={"environment.commit": "f" * 40}) for r in changed])
    assert f"Ran another commit than its method: `{name}` on weather." in results_page.effects()


def test_a_variant_differs_in_what_its_name_says_and_in_nothing_else(empty: Path) -> None:
    plain, changed = (run_record("sequential", 0, variant=v) for v in (None, "sequential@lr=0.5"))
    changed = edited(changed, edits={"config.training.lr": 0.5})
    keep_grid(empty, [plain, changed])
    assert "`sequential@lr=0.5`" in results_page.effects()
    changed = edited(changed, edits={"config.training.epochs": 3})
    keep_grid(empty, [plain, changed])
    with pytest.raises(SystemExit, match=r"from sequential in training\.epochs as well"):
        results_page.effects()


def test_a_row_needs_one_setting_and_tells_of_two_commits(empty: Path) -> None:
    records = [run_record("ridge", seed) for seed in range(3)]
    keep_grid(empty, records)
    assert "weather" in results.tables()
    records[2] = edited(records[2], edits={"config.training.lr": 0.5})
    keep_grid(empty, records)
    with pytest.raises(SystemExit, match=r"runs of ridge on weather differ in training\.lr;"):
        results_page.page()
    records[2] = edited(run_record("ridge", 2), edits={"environment.commit": "f" * 40})
    keep_grid(empty, records)
    assert "Not all seeds ran the same commit: ridge on weather." in results_page.page()


def test_searches_of_other_methods_stay(empty: Path) -> None:
    old = SEARCH | {"beyond": 0}
    keep_grid(empty, [run_record("l2p", 0, search=old), run_record("sequential", 0, search=old)])
    assert "at most 4 candidates per method." in results_page.page()
    keep_grid(empty, [run_record("sequential", 0)])
    one, two = SearchInfo.model_validate(old), SearchInfo.model_validate(SEARCH)
    assert results.searches_of("weather") == {"l2p": one, "sequential": two}
    assert "`sequential`: Chosen by final average accuracy" in results_page.page()
    assert "and 2 more if the best learning rate" in results_page.page()
    keep_grid(empty, [run_record("sequential", 0, search=None)])
    assert results.searches_of("weather") == {"l2p": one}


def test_a_learning_rate_at_the_edge_of_the_search_is_mentioned(empty: Path) -> None:
    keep_grid(empty, [run_record("sequential", 0)])
    assert "1 of 1 chosen learning rates" in results_page.edge_of_search()
    inside = [{"setting": {"lr": lr}, "score": s} for lr, s in ((1e-4, 0.1), (1e-3, 0.5), (1, 0.2))]
    keep_grid(empty, [run_record("sequential", 0, search=SEARCH | {"candidates": inside})])
    assert results_page.edge_of_search().startswith("No chosen learning rate")


def test_a_run_without_a_commit_needs_one_to_be_given(empty: Path) -> None:
    record = edited(run_record("ridge", 0), edits={"environment.commit": None})
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
    assert json.loads(file.read_text())["environment"]["commit_given"] is False


def test_two_searches_of_one_method_do_not_go_together(empty: Path) -> None:
    write(empty / "a" / "record.json", run_record("sequential", 0))
    other = SEARCH | {"chosen": {"lr": 0.01}}
    write(empty / "b" / "record.json", run_record("sequential", 1, search=other))
    with pytest.raises(SystemExit, match="different searches"):
        results.keep([str(empty)])


def test_the_page_of_speed_follows_from_its_records() -> None:
    assert page.PAGE.read_text("utf-8") == page.page(), "run: python -m benchmarks.page"


def test_runs_that_are_not_results() -> None:
    with pytest.raises(SystemExit, match="a run that is failed is not a result"):
        results.kept(run_record("ridge", 0, status="failed"))
    record = run_record("ridge", 0)
    assert record.environment is not None
    resumed = edited(record, earlier_environments=[record.environment.model_dump()])
    with pytest.raises(SystemExit, match="other code"):
        results.kept(resumed)
