"""Tables of methods over seeds: numbers, ranking, differences, formats."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sodap.errors import SodapError
from sodap.evaluation import mean_over_seeds
from sodap.reporting import (
    METRICS,
    Result,
    StreamTable,
    as_csv,
    as_latex,
    as_markdown,
    as_text,
    conclusion,
    find_metrics,
    load_results,
    make_tables,
)
from sodap.reporting.tables.as_json import as_json_content
from sodap.reporting.tables.formats import recall_markdown, recall_text
from sodap.reporting.tables.single_runs import (
    runs_as_csv,
    runs_as_latex,
    runs_as_markdown,
    runs_as_text,
)
from sodap.runs.record import RunRecord

from .records import a_record, edited, write

ALL = list(METRICS.values())
FROM_ANSWERS = ("forgetting_by_chance", "balanced_accuracy", "rarest_recall")
"""Metrics that records without single answers and confusion matrices do not have."""
KNOWN = [metric for metric in ALL if metric.key not in FROM_ANSWERS]
LEVELS = {"residual-sodap": 0.80, "ridge": 0.90, "sequential": 0.79}


def records(seeds: int = 5, /, **levels: float) -> list[RunRecord]:
    wanted = {name.replace("_", "-"): level for name, level in levels.items()} or LEVELS
    return [a_record(name, seed, level) for name, level in wanted.items() for seed in range(seeds)]


def tables_of(runs: list[RunRecord]) -> list[StreamTable]:
    return make_tables(map(Result.of, runs))


def the_table(seeds: int = 5, /, **levels: float) -> StreamTable:
    (table,) = tables_of(records(seeds, **levels))
    return table


def test_numbers_are_those_of_the_records() -> None:
    table = the_table()
    found = table.mean("ridge", "average_forgetting")
    each = [a_record("ridge", seed, 0.9).metrics.accuracy for seed in range(5)]
    assert found is not None
    assert found.mean == pytest.approx(np.mean([m.average_forgetting for m in each if m]))
    expected = {
        "trainable_parameters": 4321,  # the most in any stage
        "stored_bytes": 20_560,  # after the last stage
        "train_speed": 1002,
        "inference_speed": 5000,
        "macro_f1": 0.8,
    }
    for metric, value in expected.items():
        number = table.mean("ridge", metric)
        assert number is not None
        assert number.mean == pytest.approx(value), metric
    assert table.methods == ["ridge", "residual-sodap", "sequential"]


def test_the_constant_answer() -> None:
    table = the_table()
    assert table.constant_class == "rain"
    assert table.constant["average_accuracy"] == pytest.approx((0.4 + (0.4 + 0.9) / 2) / 2)
    assert table.constant["final_average"] == pytest.approx(0.65)
    assert table.constant["average_forgetting"] == 0
    # F1 of 'rain': 2*4 / (10 + 4) and 2*9 / (10 + 9); of 'sun' 0 in both.
    assert table.constant["macro_f1"] == pytest.approx((8 / 14 / 2 + 18 / 19 / 2) / 2)


def test_differences_pair_the_common_seeds() -> None:
    mixed = records(5, ridge=0.9) + [a_record("sequential", seed, 0.8) for seed in (1, 3, 9)]
    (table,) = tables_of(mixed)
    gap = table.difference("ridge", "sequential", "average_accuracy")
    assert gap is not None
    assert gap.count == 2
    assert gap.mean == pytest.approx(0.1, abs=1e-3)
    (apart,) = tables_of([a_record("ridge", 0, 0.9), a_record("sequential", 1, 0.8)])
    assert apart.difference("ridge", "sequential", "average_accuracy") is None


def test_methods_with_equal_means_are_all_best() -> None:
    table = the_table(5, ridge=0.9, sequential=0.9001, residual_sodap=0.8)
    assert table.best(METRICS["average_accuracy"]) == {"ridge", "sequential"}
    assert table.best(METRICS["stored_bytes"]) == set()
    assert len(table.best(METRICS["average_forgetting"])) == 3


def test_an_upper_bound_is_not_ranked() -> None:
    table = the_table(5, ridge=0.8, joint=0.9)
    assert table.methods[0] == "joint"
    assert table.best(METRICS["average_accuracy"]) == {"ridge"}


def test_the_reference() -> None:
    table = the_table()
    assert table.reference() == "residual-sodap"
    assert table.reference("ridge") == "ridge"
    assert the_table(5, ridge=0.9, sequential=0.8).reference() == "ridge"
    assert the_table(5, ridge=0.9).reference() is None
    with pytest.raises(SodapError, match="no run of 'magic'"):
        table.reference("magic")


def test_one_stage_has_no_forgetting() -> None:
    one = a_record("ridge", 0, 0.9, R={"accuracy": [[0.9, 0.3]], "macro_f1": [[0.8, 0.2]]})
    (table,) = tables_of([one])
    assert table.mean("ridge", "average_forgetting") is None
    assert "–" in as_markdown(table, ALL, None)


def test_streams_and_backbones_have_tables_of_their_own() -> None:
    large = {"name": "micro", "image_size": 64, "sha256": "ab12"}
    tables = tables_of([a_record("ridge", 0, 0.9), a_record("ridge", 0, 0.8, backbone=large)])
    assert [table.title for table in tables] == [
        "weather, micro at 32 pixels",
        "weather, micro at 64 pixels",
    ]


def test_methods_with_fewer_seeds_are_not_ranked() -> None:
    (table,) = tables_of(
        records(5, ridge=0.8, sequential=0.7) + [a_record("slda", seed, 0.9) for seed in range(3)]
    )
    assert table.methods[0] == "slda"
    assert table.ranked == ["ridge", "sequential"]
    assert table.incomplete == ["slda"]
    assert table.best(METRICS["average_accuracy"]) == {"ridge"}


def test_variants_are_below_their_method_and_not_ranked() -> None:
    name = "sequential@faithful"
    changed = [a_record("sequential", seed, 0.95, variant=name) for seed in range(5)]
    alone = a_record("l2p", 0, 0.6, variant="l2p@faithful")
    (table,) = tables_of([*changed, alone, *records()])
    assert table.methods == ["ridge", "residual-sodap", "sequential", name, "l2p@faithful"]
    assert table.variants == {name: "sequential", "l2p@faithful": "l2p"}
    assert name not in table.ranked
    assert table.best(METRICS["average_accuracy"]) == {"ridge"}
    assert f"| `{name}` | 5 | 0.950" in as_markdown(table, ALL, None)


# ---------------------------------------------------------------------- formats


def test_markdown() -> None:
    lines = as_markdown(the_table(), find_metrics(["AvgACC", "stored"]), "ridge").splitlines()
    assert lines[0] == "| method | seeds | AvgACC | stored | AvgACC minus `ridge` |"
    assert lines[2] == "| `ridge` | 5 | **0.900 ± 0.001** | 20.6 kB | – |"
    assert lines[3].startswith("| `residual-sodap` | 5 | 0.800 ± 0.001 | 20.6 kB | **-0.100 (")
    assert lines[5] == "| constant | – | 0.525 | 0 B | – |"
    *grid, blank, legend = lines
    assert {line.count("|") for line in grid} == {6}
    assert blank == ""
    assert "Student" in legend


@pytest.mark.parametrize("seeds", [1, 2])
def test_with_few_seeds_there_is_no_interval_and_nothing_bold(seeds: int) -> None:
    text = as_markdown(the_table(seeds), ALL, "ridge")
    assert "**" not in text
    assert "-0.100 |" in text, "the difference itself is there"
    assert "(" not in text
    assert "Fewer than 3 seeds" in text


def test_a_single_method_is_not_the_best() -> None:
    assert "**" not in as_markdown(the_table(5, ridge=0.9), ALL, None)


def test_latex() -> None:
    text = as_latex(the_table(), ALL, "residual-sodap")
    assert r"\textbf{0.900 $\pm$ 0.001}" in text
    assert r"\textbf{$-$0.010 ($-$0.010, $-$0.010)}" in text
    assert text.count("{") == text.count("}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 5
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {len(KNOWN) + 2}
    (odd,) = tables_of([a_record("a_b&c\\d", 0, 0.9)])
    assert r"a\_b\&c\textbackslash{}d" in as_latex(odd, ALL, None)


def test_csv_has_every_number_in_full() -> None:
    table = the_table()
    rows = list(csv.DictReader(io.StringIO(as_csv([table], ALL, StreamTable.reference))))
    assert [row["method"] for row in rows] == [*table.methods, "constant"]
    found = table.mean("ridge", "average_accuracy")
    gap = table.difference("ridge", "residual-sodap", "average_accuracy")
    assert found is not None
    assert gap is not None
    assert float(rows[0]["average_accuracy_mean"]) == found.mean
    assert float(rows[0]["average_accuracy_high"]) == found.high
    assert float(rows[0]["average_accuracy_difference_low"]) == gap.low
    assert rows[0]["against"] == "residual-sodap"
    assert float(rows[3]["final_average_mean"]) == pytest.approx(0.65)
    assert rows[3]["final_average_sd"] == ""
    assert {f"{key}_sd" for key in METRICS} <= rows[0].keys()


def test_every_run_may_have_a_row(tmp_path: Path) -> None:
    table = the_table(3)
    rows = list(csv.DictReader(io.StringIO(runs_as_csv([table], ALL))))
    found = [(row["method"], row["seed"]) for row in rows]
    assert found[:-1] == [(method, str(seed)) for method in table.methods for seed in range(3)]
    assert found[-1] == ("constant", "")
    for row in rows[:-1]:
        record = a_record(row["method"], int(row["seed"]), LEVELS[row["method"]])
        for metric in KNOWN:
            assert float(row[metric.key]) == metric.of(record)
    lines = runs_as_markdown(table, find_metrics(["final"])).splitlines()
    assert lines[0] == "| method | seed | final |"
    assert lines[2] == f"| `ridge` | 0 | {table.scores['ridge']['final_average'][0]:.3f} |"
    assert len(lines) == 2 + 9 + 1
    assert runs_as_latex(table, ALL).count("ridge & ") == 3


def test_json_has_every_number_of_every_seed() -> None:
    table = the_table(3)
    content = json.loads(json.dumps(as_json_content([table], ALL, StreamTable.reference)))
    assert "Student" in content["intervals"]
    (shown,) = content["tables"]
    assert shown["against"] == "residual-sodap"
    assert shown["constant"]["final_average"] == pytest.approx(0.65)
    assert [row["method"] for row in shown["rows"]] == table.methods
    row = shown["rows"][0]
    for metric in KNOWN:
        expected = {str(s): metric.of(a_record("ridge", s, 0.9)) for s in range(3)}
        assert row[metric.key]["seeds"] == expected
        assert row[metric.key]["mean"] == pytest.approx(np.mean(list(expected.values())))
    gap = table.differences([(m, "residual-sodap") for m in ("ridge", "sequential")], "macro_f1")[0]
    assert gap is not None
    assert row["macro_f1"]["difference"]["low"] == gap.low
    assert row["macro_f1"]["difference"]["p"] == gap.p, "corrected as in the other formats"
    assert shown["rows"][1]["macro_f1"]["difference"] is None, "the reference itself"


def with_recall(method: str, seed: int, rain: int) -> RunRecord:
    """A run that recognises every image of `sun` and some of `rain`."""
    confusions = [[[6, 0], [4 - rain, rain]], [[1, 0], [9 - rain, rain]]]
    return a_record(method, seed, confusions=[confusions, confusions])


def test_recall_of_every_class_and_classes_that_are_never_found() -> None:
    (table,) = tables_of([with_recall("ridge", seed, seed) for seed in range(3)] +
                         [with_recall("l2p", seed, 0) for seed in range(3)])  # fmt: skip
    assert table.recall("ridge", "sun") == 1
    assert table.recall("ridge", "rain") == pytest.approx((0 + 2 / 13 + 4 / 13) / 3)
    assert table.never_found("ridge") == []
    assert table.never_found("l2p") == ["rain"]
    assert "`l2p` never finds 'rain'" in conclusion(table)
    lines = recall_markdown(table).splitlines()
    assert "| method | sun | rain |" in lines
    assert "| `l2p` | 1.000 | **0.000** |" in lines
    assert "| constant | 0.000 | 1.000 |" in lines
    assert len(recall_text(table)) == 2
    assert recall_text(the_table()) == [], "the records have no confusion matrices"


def test_rows_of_single_runs_fit_80_columns() -> None:
    console = Console(width=80, file=io.StringIO())
    for part in runs_as_text(the_table(), ALL):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 3 * (1 + 15 + 1), "no cell is wrapped"


def test_text_fits_80_columns() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    for part in as_text(the_table(), ALL, "residual-sodap"):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    text = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    assert max(map(len, text.splitlines())) <= 80
    grids, _ = text.split("In brackets")
    assert len(grids.splitlines()) == 3 * 5, "no cell is wrapped"
    for shown in ("0.900±0.001", "4.32k ", "20.6 kB ", "1k±0", "5k", "+0.100 (+0.100, +0.100)"):
        assert shown in text
    bold = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard")
    bold.print(*as_text(the_table(), ALL, None))
    assert isinstance(bold.file, io.StringIO)
    assert "\x1b[1m0.900±0.001" in bold.file.getvalue()


@pytest.mark.parametrize(
    ("metric", "numbers", "shown"),
    [
        ("train_speed", [1000, 1004], "1k ± 0"),
        ("train_speed", [100, 140], "120 ± 28"),
        ("train_speed", [54.6], "55"),
        ("trainable_parameters", [523_018], "523k"),
        ("stored_bytes", [640, 640], "640 B"),
        ("average_accuracy", [0.5, 0.5], "0.500 ± 0.000"),
        ("average_accuracy", [0.5], "0.500"),
    ],
)
def test_means_and_deviations(metric: str, numbers: list[float], shown: str) -> None:
    assert METRICS[metric].format_mean(mean_over_seeds(numbers)) == shown


# ---------------------------------------------------------------------- loading results


def test_results_are_found_in_folders_and_files(tmp_path: Path) -> None:
    write(tmp_path / "grid" / "weather" / "ridge" / "s0" / "record.json", a_record("ridge", 0))
    write(tmp_path / "grid/weather/ridge/search/0/record.json", a_record("ridge", 9))
    running = a_record("ridge", 1, status="interrupted")
    write(tmp_path / "grid" / "weather" / "ridge" / "s1" / "record.json", running)
    write(tmp_path / "kept.json", a_record("sequential", 0))
    found, unfinished = load_results([tmp_path / "grid", tmp_path / "kept.json"])
    assert [(each.row, each.record.config.seed) for each in found] == [
        ("ridge", 0),
        ("sequential", 0),
    ]
    assert unfinished == 1


def test_a_stream_may_be_called_search(tmp_path: Path) -> None:
    """Only METHOD/search/INDEX holds candidates."""
    for path in ("search/ridge/s0", "search/l2p/search/s0", "search/slda/search/0"):
        write(tmp_path / path / "record.json", a_record(path.split("/")[1], 0))
    found, _ = load_results([tmp_path])
    assert sorted(each.row for each in found) == ["l2p", "ridge"]


def test_two_runs_of_one_row_are_named(tmp_path: Path) -> None:
    for name in ("full", "qe"):
        write(tmp_path / name / "s0" / "record.json", a_record("ridge", 0))
    found, _ = load_results([tmp_path])
    paths = f"({tmp_path}/full/s0 and {tmp_path}/qe/s0)"
    with pytest.raises(SodapError, match=f"two runs of ridge with seed 0.*{re.escape(paths)}"):
        make_tables(found)
    with pytest.raises(SodapError, match="two runs of ridge with seed 0"):
        tables_of([a_record("ridge", 0, 0.9), a_record("ridge", 0, 0.8)])


def test_what_is_not_a_result(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="nowhere does not exist"):
        load_results([tmp_path / "nowhere"])
    with pytest.raises(SodapError, match="found no finished run"):
        load_results([tmp_path])
    write(tmp_path / "other.json", {"a": 1})
    with pytest.raises(SodapError, match=r"other\.json"):
        load_results([tmp_path / "other.json"])
    write(tmp_path / "runs" / "record.json", edited(a_record("ridge"), status="failed"))
    with pytest.raises(SodapError, match="1 unfinished"):
        load_results([tmp_path / "runs"])
    with pytest.raises(SodapError, match="unknown metric 'beauty'"):
        find_metrics(["beauty"])
