from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from sodap.errors import SodapError
from sodap.evaluation import spread, summary
from sodap.reporting import (
    METRICS,
    StreamTable,
    as_csv,
    as_latex,
    as_markdown,
    as_text,
    find_metrics,
    find_records,
    make_tables,
    verdict,
)
from sodap.reporting.tables.formats import show, show_spread
from sodap.reporting.tables.significance import claims
from sodap.reporting.tables.stream_table import mixtures
from tests.reporting.made_runs import a_record, write

ALL = list(METRICS.values())
LEVELS = {"residual-sodap": 0.80, "ridge": 0.90, "sequential": 0.79}


def records(seeds: int = 5, /, **levels: float) -> list[dict[str, Any]]:
    wanted = {name.replace("_", "-"): level for name, level in levels.items()} or LEVELS
    return [a_record(name, seed, level) for name, level in wanted.items() for seed in range(seeds)]


def the_table(seeds: int = 5, /, **levels: float) -> StreamTable:
    (table,) = make_tables(records(seeds, **levels))
    return table


def test_numbers_are_those_of_the_records() -> None:
    table = the_table()
    found = table.spread("ridge", "average_forgetting")
    each = [summary(a_record("ridge", s, 0.9)["R"]["accuracy"]) for s in range(5)]
    forgot = [one["average_forgetting"] for one in each]
    assert found is not None
    assert found.mean == pytest.approx(np.mean(np.array(forgot, dtype=float)))
    expected = {
        "trainable_parameters": 4321,  # the most in any stage
        "stored_bytes": 20_560,  # at the end
        "train_speed": 1002,
        "inference_speed": 5000,
        "macro_f1": 0.8,
    }
    for metric, value in expected.items():
        number = table.spread("ridge", metric)
        assert number is not None
        assert number.mean == pytest.approx(value), metric
    assert table.methods == ["ridge", "residual-sodap", "sequential"]


def test_the_constant_row_answers_the_majority_of_the_first_domain() -> None:
    table = the_table()
    assert table.answer == "rain"
    assert table.constant["average_accuracy"] == pytest.approx((0.4 + (0.4 + 0.9) / 2) / 2)
    assert table.constant["final_average"] == pytest.approx(0.65)
    assert table.constant["average_forgetting"] == 0
    # F1 of 'rain': 2*4 / (10 + 4) and 2*9 / (10 + 9); of 'sun' 0 in both.
    assert table.constant["macro_f1"] == pytest.approx((8 / 14 / 2 + 18 / 19 / 2) / 2)


def test_differences_pair_the_seeds_that_both_have() -> None:
    mixed = records(5, ridge=0.9) + [a_record("sequential", seed, 0.8) for seed in (1, 3, 9)]
    (table,) = make_tables(mixed)
    gap = table.difference("ridge", "sequential", "average_accuracy")
    assert gap is not None
    assert gap.count == 2
    assert gap.mean == pytest.approx(0.1, abs=1e-3)
    (apart,) = make_tables([a_record("ridge", 0, 0.9), a_record("sequential", 1, 0.8)])
    assert apart.difference("ridge", "sequential", "average_accuracy") is None
    assert "share no seed" in verdict(apart)


def test_bold_is_for_the_best_and_for_equals() -> None:
    table = the_table(5, ridge=0.9, sequential=0.9001, residual_sodap=0.8)
    assert table.best(METRICS["average_accuracy"]) == {"ridge", "sequential"}
    assert table.best(METRICS["stored_bytes"]) == set()
    # Forgetting is the same for all three.
    assert len(table.best(METRICS["average_forgetting"])) == 3


def test_a_bound_wins_nothing() -> None:
    table = the_table(5, ridge=0.8, joint=0.9)
    assert table.methods[0] == "joint"
    assert table.best(METRICS["average_accuracy"]) == {"ridge"}
    assert "a bound and no rival: `joint` 0.900" in verdict(table)


def test_the_verdict_says_who_wins_and_whether_it_is_noise() -> None:
    told = verdict(the_table())
    assert "`ridge` has the highest AvgACC, 0.900. The next, `residual-sodap`, is 0.100" in told
    assert "`residual-sodap` is number 2 of 3" in told
    assert "more than the noise" in told
    assert "Always answering 'rain' has an AvgACC of 0.525, less than every method here." in told

    jumpy = records(5, ridge=0.8)
    for seed, level in enumerate((0.7, 0.9, 0.82, 0.75, 0.88)):
        jumpy.append(a_record("sequential", seed, level))
    assert "within the noise between seeds" in verdict(make_tables(jumpy)[0])

    poor = verdict(the_table(5, ridge=0.9, sequential=0.3))
    assert "no better is `sequential`." in poor
    assert "one seed, which tells nothing" in verdict(the_table(1, ridge=0.9, sequential=0.3))


def test_whom_all_are_compared_with() -> None:
    table = the_table()
    assert table.rival(None) == "residual-sodap"
    assert table.rival("ridge") == "ridge"
    assert the_table(5, ridge=0.9, sequential=0.8).rival(None) == "ridge"
    assert the_table(5, ridge=0.9).rival(None) is None
    with pytest.raises(SodapError, match="no run of 'magic'"):
        table.rival("magic")


def test_one_stage_has_no_forgetting() -> None:
    one = a_record("ridge", 0, 0.9)
    one["R"] = {"accuracy": [[0.9, 0.3]], "macro_f1": [[0.8, 0.2]]}
    (table,) = make_tables([one])
    assert table.spread("ridge", "average_forgetting") is None
    assert "–" in as_markdown(table, ALL, None)


# ---------------------------------------------------------------------- formats


def test_markdown() -> None:
    lines = as_markdown(the_table(), find_metrics(["AvgACC", "stored"]), "ridge").splitlines()
    assert lines[0] == "| method | seeds | AvgACC | stored | AvgACC minus `ridge` |"
    assert lines[2] == "| `ridge` | 5 | **0.900 ± 0.001** | 20.6 kB | – |"
    assert lines[3].startswith("| `residual-sodap` | 5 | 0.800 ± 0.001 | 20.6 kB | **-0.100 (")
    assert lines[5] == "| constant | – | 0.525 | 0 B | – |"
    *grid, blank, told = lines
    assert {line.count("|") for line in grid} == {6}
    assert blank == ""
    assert told.startswith("In brackets: 95 % bootstrap interval over seeds. Bold: the best of a")


@pytest.mark.parametrize("seeds", [1, 2])
def test_with_few_seeds_there_is_no_interval_and_nothing_bold(seeds: int) -> None:
    table = the_table(seeds)
    text = as_markdown(table, ALL, "ridge")
    assert "**" not in text
    assert "-0.100 |" in text, "the difference itself is there"
    assert "(" not in text
    assert text.endswith("Fewer than 3 seeds in common: no intervals, and nothing is bold.\n")
    assert f"by {('one seed, which tells', 'two seeds, which tell')[seeds - 1]}" in verdict(table)
    assert "(p " not in verdict(table)
    (number,) = claims([(table, "ridge", "sequential", "average_accuracy")])
    assert number is not None
    assert number.p is None


def test_a_method_alone_is_not_the_best() -> None:
    assert "**" not in as_markdown(the_table(5, ridge=0.9), ALL, None)
    assert "bold" not in as_markdown(the_table(5, ridge=0.9), ALL, None)


def test_latex() -> None:
    text = as_latex(the_table(), ALL, "residual-sodap")
    assert r"\textbf{0.900 $\pm$ 0.001}" in text
    assert r"\textbf{$-$0.010 ($-$0.010, $-$0.010)}" in text
    assert text.count("{") == text.count("}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 5
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {len(ALL) + 2}
    odd = [a_record("a_b&c\\d", 0, 0.9)]
    assert r"a\_b\&c\textbackslash{}d" in as_latex(make_tables(odd)[0], ALL, None)


def test_csv_holds_every_number_in_full() -> None:
    table = the_table()
    rows = list(csv.DictReader(io.StringIO(as_csv([table], ALL, lambda t: t.rival(None)))))
    assert [row["method"] for row in rows] == [*table.methods, "constant"]
    found, gap = (
        table.spread("ridge", "average_accuracy"),
        table.difference("ridge", "residual-sodap", "average_accuracy"),
    )
    assert found is not None
    assert gap is not None
    assert float(rows[0]["average_accuracy_mean"]) == found.mean
    assert float(rows[0]["average_accuracy_high"]) == found.high
    assert float(rows[0]["average_accuracy_difference_low"]) == gap.low
    assert rows[0]["against"] == "residual-sodap"
    assert float(rows[3]["final_average_mean"]) == pytest.approx(0.65)
    assert rows[3]["final_average_sd"] == ""
    assert {f"{key}_sd" for key in METRICS} <= rows[0].keys()


def test_text_fits_80_columns() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    for part in as_text(the_table(), ALL, "residual-sodap"):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    text = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    assert max(map(len, text.splitlines())) <= 80
    *grids, told, more = text.splitlines()
    assert len(grids) == 2 * 5, "no cell was broken in two"
    assert told.startswith("In brackets: 95 % bootstrap interval over seeds. Bold: ")
    assert f"{told} {more}".endswith("a difference that is more than the noise between seeds.")
    for shown in ("0.900±0.001", "4.32k ", "20.6 kB ", "1k±0", "5k", "+0.100 (+0.100, +0.100)"):
        assert shown in text
    bold = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard")
    bold.print(*as_text(the_table(), ALL, None))
    assert isinstance(bold.file, io.StringIO)
    assert "\x1b[1m0.900±0.001" in bold.file.getvalue()


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("average_accuracy", -0.0001, "0.000"),
        ("average_accuracy", None, "–"),
        ("stored_bytes", 0.0, "0 B"),
        ("stored_bytes", 640.0, "640 B"),
        ("stored_bytes", 64_384_192.0, "64.4 MB"),
        ("trainable_parameters", 523_018.0, "523k"),
        ("trainable_parameters", 999_700.0, "1M"),
        ("trainable_parameters", 10.0, "10"),
        ("train_speed", 54.6, "55"),
    ],
)
def test_single_numbers(metric: str, value: float | None, shown: str) -> None:
    assert show(value, METRICS[metric]) == shown


@pytest.mark.parametrize(
    ("metric", "numbers", "shown"),
    [
        ("train_speed", [1000, 1004], "1k ± 0"),
        ("train_speed", [100, 140], "120 ± 28"),
        ("stored_bytes", [640, 640], "640 B"),
        ("average_accuracy", [0.5, 0.5], "0.500 ± 0.000"),
        ("average_accuracy", [0.5], "0.500"),
    ],
)
def test_a_deviation_is_shown_unless_there_is_none(
    metric: str, numbers: list[float], shown: str
) -> None:
    assert show_spread(spread(numbers), METRICS[metric], " ± ") == shown


# ---------------------------------------------------------------------- finding records


def test_records_are_found_in_folders_and_files(tmp_path: Path) -> None:
    write(tmp_path / "grid" / "weather" / "ridge" / "s0" / "record.json", a_record("ridge", 0, 0.9))
    write(tmp_path / "grid/weather/ridge/search/0/record.json", a_record("ridge", 9, 0.9))
    running = a_record("ridge", 1, 0.9, status="interrupted")
    write(tmp_path / "grid" / "weather" / "ridge" / "s1" / "record.json", running)
    write(tmp_path / "kept.json", a_record("sequential", 0, 0.8))
    found, unfinished = find_records([tmp_path / "grid", tmp_path / "kept.json"])
    assert [each["config"]["method"] for each in found] == ["ridge", "sequential"]
    assert [each["config"]["seed"] for each in found] == [0, 0]
    assert unfinished == 1


def test_a_stream_may_be_called_search(tmp_path: Path) -> None:
    """Only METHOD/search/INDEX holds candidates."""
    for path in ("search/ridge/s0", "search/l2p/search/s0", "search/slda/search/0"):
        method = path.split("/")[1]
        write(tmp_path / path / "record.json", a_record(method, 0, 0.9))
    found, _ = find_records([tmp_path])
    assert sorted(each["config"]["method"] for each in found) == ["l2p", "ridge"]


def test_two_runs_of_one_row_are_named(tmp_path: Path) -> None:
    for name in ("full", "qe"):
        write(tmp_path / name / "s0" / "record.json", a_record("residual-sodap", 0, 0.9))
    found, _ = find_records([tmp_path])
    both = f"{tmp_path}/full/s0 and {tmp_path}/qe/s0"
    words = f"two runs are of residual-sodap with seed 0 on weather ({both}); a table needs"
    with pytest.raises(SodapError, match=re.escape(words)):
        make_tables(found)


def test_an_ablation_is_compared_with_the_full_method() -> None:
    names = {"a method, full": ("full", 0.7), "a method, less": ("qe", 0.9)}
    runs = [a_record(row, 0, level, ablation=part) for row, (part, level) in names.items()]
    (table,) = make_tables(runs)
    assert table.methods[0] == "a method, less"
    assert table.rival(None) == "a method, full"
    assert table.rival("a method, less") == "a method, less"


def test_what_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="there is nothing at"):
        find_records([tmp_path / "nowhere"])
    with pytest.raises(SodapError, match="no finished run is at"):
        find_records([tmp_path])
    write(tmp_path / "other.json", {"a": 1})
    with pytest.raises(SodapError, match="is not the record of a run"):
        find_records([tmp_path / "other.json"])
    write(tmp_path / "runs" / "record.json", a_record("ridge", 0, 0.9, status="failed"))
    with pytest.raises(SodapError, match="1 is not finished"):
        find_records([tmp_path / "runs"])
    with pytest.raises(SodapError, match="two runs are of ridge with seed 0"):
        make_tables([a_record("ridge", 0, 0.9), a_record("ridge", 0, 0.8)])
    with pytest.raises(SodapError, match="no metric is called 'beauty'"):
        find_metrics(["beauty"])


def test_streams_and_backbones_have_tables_of_their_own() -> None:
    large = {"name": "micro", "image_size": 64}
    tables = make_tables([a_record("ridge", 0, 0.9), a_record("ridge", 0, 0.8, backbone=large)])
    assert [table.title for table in tables] == [
        "weather, micro at 32 pixels",
        "weather, micro at 64 pixels",
    ]


def test_fewer_seeds_are_shown_and_not_ranked() -> None:
    (table,) = make_tables(
        records(5, ridge=0.8, sequential=0.7) + [a_record("slda", seed, 0.9) for seed in range(3)]
    )
    assert table.methods[0] == "slda"
    assert table.contenders == ["ridge", "sequential"]
    assert table.best(METRICS["average_accuracy"]) == {"ridge"}
    told = verdict(table)
    assert told.startswith("`ridge` has the highest AvgACC")
    assert "fewer seeds: `slda` (3 seeds, AvgACC 0.9" in told
    (once,) = make_tables([*records(5, ridge=0.8), a_record("slda", 0, 0.9)])
    assert "`slda` (1 seed, AvgACC" in verdict(once)


def test_variants_are_shown_and_not_ranked() -> None:
    name = "sequential@faithful"
    changed = [a_record("sequential", seed, 0.95, variant=name) for seed in range(5)]
    lost = a_record("l2p", 0, 0.6, variant="l2p@faithful")  # its method is not here
    (table,) = make_tables([*changed, lost, *records()])
    assert table.methods == ["ridge", "residual-sodap", "sequential", name, "l2p@faithful"]
    assert table.variants == {name: "sequential", "l2p@faithful": "l2p"}
    assert name not in table.contenders
    assert table.best(METRICS["average_accuracy"]) == {"ridge"}
    assert f"`{name}`" not in verdict(table)
    assert verdict(table).endswith(" Variants (@) are not ranked.")
    assert "Variants" not in verdict(the_table())
    assert f"| `{name}` | 5 | 0.950" in as_markdown(table, ALL, None)


def test_a_row_of_several_settings_is_noticed() -> None:
    good = records()
    assert mixtures(good) == {}
    good[1]["config"]["options"] = {"pool_size": 3}
    good[-1]["environment"] = {"commit": "abc", "sodap": "9"}
    assert mixtures(good) == {
        "residual-sodap on weather": ["options.pool_size"],
        "sequential on weather": ["commit", "version"],
    }
