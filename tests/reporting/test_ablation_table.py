"""The table of an ablation has the numbers of its records."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path

import pytest
from rich.console import Console

import sodap.streams.registry as stream_registry
from sodap.cli.ablate import run_ablation
from sodap.errors import SodapError
from sodap.grids.ablation import Ablation
from sodap.reporting.tables.ablation import ablation_table, write_ablation
from sodap.runs.reading import read_record
from tests.conftest import make_stream
from tests.reporting.records import a_record, edited, write

SCORES = {
    "full": {0: (0.90, 0.10), 1: (0.80, 0.20), 2: (0.85, 0.12)},
    "qe": {0: (0.85, 0.05), 1: (0.74, 0.15), 2: (0.81, 0.02)},
    "pudd": {1: (0.83, 0.21)},
}
"""AvgACC and AvgF by variant and seed."""


def made(out: Path, status: str = "finished") -> Ablation:
    """An ablation whose records have these scores."""
    ablation = Ablation("default", out, [], range(3), only=["qe", "pudd", "sodap"])
    for variant in ablation.variants:
        for seed, (average, forgetting) in SCORES.get(variant.name, {}).items():
            folder = ablation.folder(variant, seed)
            R = [[average, 0.3], [average - forgetting, average + forgetting]]
            record = edited(
                a_record(seed=seed, status=status),
                R={"accuracy": R, "macro_f1": R},
                variant=None if variant.name == "full" else folder.parent.name,
            )
            write(folder / "record.json", record)
    return ablation


def test_it_compares_each_variant_with_the_full_method_seed_by_seed(tmp_path: Path) -> None:
    table = ablation_table(made(tmp_path))
    full, qe, pudd = "residual-sodap", "without query enhancer (QE)", "without PUDD"
    assert table.methods == [full, pudd, qe], "the full method first, then by AvgACC"
    assert table.reference() == full
    for index, metric in enumerate(("average_accuracy", "average_forgetting")):
        numbers = [pair[index] for pair in SCORES["qe"].values()]
        found, gap = table.mean(qe, metric), table.difference(qe, full, metric)
        assert found is not None
        assert gap is not None
        assert found.mean == pytest.approx(statistics.mean(numbers))
        assert found.sd == pytest.approx(statistics.stdev(numbers))
        whole = statistics.mean(pair[index] for pair in SCORES["full"].values())
        assert gap.mean == pytest.approx(statistics.mean(numbers) - whole)
    single = table.difference(pudd, full, "average_accuracy")
    assert single is not None
    assert single.mean == pytest.approx(0.83 - 0.80), "against the same seed, not the mean"


def test_it_is_written_as_markdown_csv_and_json(tmp_path: Path) -> None:
    ablation = made(tmp_path)
    paths = write_ablation(ablation, ablation_table(ablation))
    assert [path.name for path in paths] == ["ablation.md", "ablation.csv", "ablation.json"]

    markdown = paths[0].read_text("utf-8")
    assert "| `residual-sodap` | 3 | 0.850 ± 0.050 |" in markdown
    assert "| `without query enhancer (QE)` | 3 | 0.800 ± 0.056 |" in markdown
    marks = [line for line in markdown.splitlines() if line.startswith("| without PUDD | `pudd")]
    assert marks[0].count("✓") == 6

    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(paths[1].read_text()))}
    qe = rows["without query enhancer (QE)"]
    assert float(qe["average_accuracy_difference"]) == pytest.approx(-0.05)
    assert qe["against"] == "residual-sodap"

    content = json.loads(paths[2].read_text())
    by_name = {row["variant"]: row for row in content["rows"]}
    assert list(by_name) == ["full", "qe", "pudd", "sodap"]
    assert by_name["qe"]["average_accuracy"]["seeds"] == {"0": 0.85, "1": 0.74, "2": 0.81}
    assert by_name["qe"]["average_forgetting"]["difference"] == pytest.approx(-0.2 / 3)
    assert by_name["pudd"]["parts"]["L_norm"] is False
    assert by_name["pudd"]["changes"] == ["pudd=false"]
    assert "average_accuracy" not in by_name["sodap"], "none of its runs is finished"
    assert content["config"]["options"]["query_enhancer"] is True


def test_p_values_are_corrected_for_all_variants(tmp_path: Path) -> None:
    ablation = made(tmp_path)
    table = ablation_table(ablation)
    alone = table.difference("without query enhancer (QE)", "residual-sodap", "average_accuracy")
    rows = json.loads(write_ablation(ablation, table)[2].read_text())["rows"]
    (corrected,) = [row["average_accuracy"]["p"] for row in rows if row["variant"] == "qe"]
    assert alone is not None
    assert alone.p is not None
    assert corrected >= alone.p


def test_without_the_full_method_there_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="no run of the full method is finished"):
        ablation_table(made(tmp_path, status="failed"))


def test_the_command_runs_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stream_registry._FACTORIES, "stripes", make_stream)
    changes = ["stream=stripes", "epochs=1", "batch_size=16", "device=cpu", "evidence=false"]
    shown = io.StringIO()
    for _ in range(2):
        run_ablation(
            Console(file=shown, width=200),
            "default",
            [*changes, "l_div=false"],
            seeds=1,
            only="qe,div",
            extra=False,
            out=tmp_path / "out",
            jobs=0,
        )
    lines = shown.getvalue().splitlines()
    assert lines[0] == "without L_div: left out, because it is off already"
    assert "2 runs to do" in lines
    assert "0 runs to do; 2 finished before" in lines
    folder = tmp_path / "out" / "stripes" / "residual-sodap@query_enhancer=false" / "s0"
    record = read_record(folder / "record.json")
    assert record.config.options["query_enhancer"] is False
    assert record.metrics.accuracy is not None
    rows = [line for line in lines if line.startswith("without query enhancer")]
    assert f"{record.metrics.accuracy.average_accuracy:.3f}" in rows[0]
    assert "no intervals" in shown.getvalue(), "with one seed"
    assert (tmp_path / "out" / "ablation.md").is_file()
