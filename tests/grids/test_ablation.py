"""What is removed is what the name says, and the table is what the records say."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sodap.backbones import build_backbone
from sodap.errors import SodapError
from sodap.grids import run_grid
from sodap.grids.ablation import EXTRA, FULL, REMOVALS, Ablation, Variant, parts_of
from sodap.grids.ablation_table import as_csv, as_markdown, table_of, write_table
from sodap.methods.residual_sodap import ResidualSodap, ResidualSodapConfig
from sodap.randomness import Randomness
from sodap.runs.reading import read_record
from sodap.runs.record import MetricsByMeasure
from sodap.storage import write_json

GOLDEN = Path(__file__).parents[1] / "runs" / "golden"
QUICK = ["stream=stripes", "epochs=1", "batch_size=16", "device=cpu", "evidence=false"]

# The paper's table, typed off: the marks of each row in the order of its columns.
COLUMNS = ["SODAP", "PUDD", "Distill", "Pseudo", "L_div", "L_norm", "UW", "QE"]
MARKS = {
    "full": "11111111",
    "qe": "11111110",
    "pudd": "10111011",
    "sodap": "01111111",
    "pseudo": "11101111",
    "distill": "11001111",
    "div": "11110111",
    "norm": "11111011",
    "uw": "11111101",
}
SWITCHES = {
    "qe": "query_enhancer",
    "pudd": "pudd",
    "sodap": "sodap",
    "pseudo": "pseudo",
    "distill": "distill",
    "div": "l_div",
    "norm": "l_norm",
    "uw": "uw",
}

every_removal = pytest.mark.parametrize("removal", REMOVALS, ids=lambda variant: variant.name)


def an_ablation(out: Path, only: str = "", **more: Any) -> Ablation:
    changes = more.pop("changes", QUICK)
    seeds = more.pop("seeds", 2)
    return Ablation("default", out, changes, range(seeds), only=only.split(), **more)


# ---------------------------------------------------------------------- what is removed


def differences(ablation: Ablation, variant: Variant) -> dict[str, Any]:
    """Everything that a variant's settings say otherwise than the full method's."""
    whole, less = (flat(ablation.config(v).described()) for v in (FULL, variant))
    assert whole.keys() == less.keys()
    return {key: less[key] for key in less if less[key] != whole[key]}


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        found |= inner
    return found


@every_removal
@pytest.mark.parametrize("recipe", ["default", "paper", "demo"])
def test_a_removal_switches_off_what_it_names_and_nothing_else(
    tmp_path: Path, removal: Variant, recipe: str
) -> None:
    ablation = Ablation(recipe, tmp_path)
    assert differences(ablation, removal) == {f"options.{SWITCHES[removal.name]}": False}


def test_the_removals_are_the_eight_of_the_paper(tmp_path: Path) -> None:
    assert [variant.name for variant in an_ablation(tmp_path).variants()] == list(MARKS)


@pytest.mark.parametrize("variant", [FULL, *REMOVALS], ids=lambda variant: variant.name)
def test_the_marks_are_those_of_the_paper_and_true(tmp_path: Path, variant: Variant) -> None:
    config = an_ablation(tmp_path).config(variant)
    marks = parts_of(config)
    assert marks == dict(zip(COLUMNS, map(bool, map(int, MARKS[variant.name])), strict=True))

    options = ResidualSodapConfig.model_validate(config.options)
    method = ResidualSodap(build_backbone("micro"), 3, Randomness(0), options)
    losses = method.config.loss_names
    assert marks["Distill"] == ("real" in losses)
    assert marks["Pseudo"] == ("pseudo" in losses)
    assert marks["L_div"] == ("div" in losses)
    assert marks["L_norm"] == ("norm" in losses)
    assert marks["QE"] == (method.prompter.memory is not None)
    assert marks["SODAP"] == (not method.prompter.router.softmax)
    assert marks["SODAP"] == (not method.prompter.router.joint)


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_other_readings_change_what_they_say(tmp_path: Path, recipe: str) -> None:
    ablation = Ablation(recipe, tmp_path, extra=True)
    readings = ablation.variants()[len(MARKS) :]
    assert set(readings) < set(EXTRA)
    for variant in EXTRA:
        wanted = [change.partition("=")[0] for change in variant.changes]
        changed = differences(ablation, variant)
        assert {key.removeprefix("options.") for key in changed} <= set(wanted)
        assert (variant in readings) == bool(changed)
    assert len({variant.name for variant in (FULL, *REMOVALS, *EXTRA)}) == 1 + 8 + len(EXTRA)


def test_the_two_recipes_are_on_opposite_sides(tmp_path: Path) -> None:
    """What `paper` reads otherwise than `default` is a variant of it, and the other way round."""
    default, paper = (
        {variant.name for variant in Ablation(recipe, tmp_path, extra=True).variants()}
        for recipe in ("default", "paper")
    )
    assert {"context-cls", "shared-after-stage1-trainable", "merge-paper"} <= default - paper
    assert {"context-patch-mean", "shared-after-stage1-frozen", "merge-rescale"} <= paper - default


def test_a_part_that_is_off_already_is_not_removed(tmp_path: Path) -> None:
    ablation = an_ablation(tmp_path, changes=[*QUICK, "l_div=false"])
    assert [variant.name for variant in ablation.left_out()] == ["div"]
    assert "div" not in [variant.name for variant in ablation.variants()]
    assert an_ablation(tmp_path).left_out() == []
    assert an_ablation(tmp_path, "qe").left_out() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"changes": ["seed=3"]}, "give --seeds instead"),
        ({"changes": ["colour=blue"]}, "'colour' is no key"),
        ({"changes": ["method=ridge"]}, "those of residual-sodap, not of ridge"),
        ({"recipe": "sequential"}, "not of sequential"),
        ({"only": ["magic"]}, "no variant is called 'magic'; there are: qe, pudd"),
        ({"changes": ["weights=nowhere.pth"]}, "no weights file"),
        ({"only": ["div"], "changes": ["l_div=false"]}, "nothing to remove"),
    ],
)
def test_mistakes_are_found_before_the_first_run(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SodapError, match=words):
        run_grid(replace(an_ablation(tmp_path / "out"), **changes).grid())
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- the table

SCORES = {
    "full": {0: (0.90, 0.10), 1: (0.80, 0.20), 2: (0.85, 0.12)},
    "qe": {0: (0.85, 0.05), 1: (0.74, 0.15), 2: (0.81, 0.02)},
    "pudd": {1: (0.83, 0.21)},
}


def recorded(out: Path, status: str = "finished") -> Ablation:
    """Folders with records of these scores."""
    ablation = an_ablation(out, "qe pudd sodap", seeds=3)
    known = read_record(GOLDEN / "record-1-last.json")
    for variant in ablation.variants():
        for seed, (average, forgetting) in SCORES.get(variant.name, {}).items():
            R = known.R.model_copy(
                update={
                    "accuracy": [[average, 0.3], [average - forgetting, average + forgetting]],
                }
            )
            record = known.model_copy(
                update={"status": status, "R": R, "metrics": MetricsByMeasure.of(R)}
            )
            path = ablation.folder(variant, seed) / "record.json"
            write_json(path, record.model_dump(mode="json"))
    return ablation


def test_the_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    ablation = recorded(tmp_path)
    rows = {row.variant.name: row for row in table_of(ablation)}
    assert list(rows) == ["full", "qe", "pudd", "sodap"]
    for index, score in enumerate(("average_accuracy", "average_forgetting")):
        numbers = [pair[index] for pair in SCORES["qe"].values()]
        found = rows["qe"].spread(score)
        assert found is not None
        assert found.mean == pytest.approx(statistics.mean(numbers))
        assert found.sd == pytest.approx(statistics.stdev(numbers))
        gap = rows["qe"].difference(score)
        assert gap is not None
        whole = statistics.mean(pair[index] for pair in SCORES["full"].values())
        assert gap.mean == pytest.approx(statistics.mean(numbers) - whole)
    assert rows["full"].difference("average_accuracy") is None
    assert rows["sodap"].spread("average_accuracy") is None
    single = rows["pudd"].difference("average_accuracy")
    assert single is not None
    assert single.mean == pytest.approx(0.83 - 0.80), "against the same seed, not against the mean"


def test_the_files_show_them(tmp_path: Path) -> None:
    ablation = recorded(tmp_path)
    paths = write_table(ablation, table_of(ablation))
    assert [path.name for path in paths] == ["ablation.md", "ablation.csv", "ablation.json"]

    markdown = paths[0].read_text("utf-8")
    lines = {line.split(" | ")[0].strip("| "): line for line in markdown.splitlines()}
    assert "| 3 | 0.850 ± 0.050 | 0.140 ± 0.053 | +0.0 | +0.0 |" in lines["full method"]
    assert (
        "| 3 | 0.800 ± 0.056 | 0.073 ± 0.068 | -5.0* | -6.7 |"
        in lines["without query enhancer (QE)"]
    )
    assert "| 1 | 0.830 | 0.210 | +3.0 | +1.0 |" in lines["without PUDD"]
    assert lines["without residual SODAP"].endswith("| 0 | – | – | – | – |")
    assert lines["without PUDD"].count("✓") == 6
    widths = {line.count("|") for line in markdown.splitlines() if line.startswith("|")}
    assert len(widths) == 1

    table = {row["variant"]: row for row in csv.DictReader(io.StringIO(paths[1].read_text()))}
    assert float(table["qe"]["average_accuracy_points"]) == pytest.approx(-5.0)
    assert table["pudd"]["L_norm"] == "0"
    assert table["pudd"]["changes"] == "pudd=false"
    assert table["sodap"]["average_accuracy_mean"] == ""

    content = json.loads(paths[2].read_text())
    assert content["rows"][1]["runs"]["average_accuracy"] == {"0": 0.85, "1": 0.74, "2": 0.81}
    assert content["rows"][1]["average_forgetting"]["points"] == pytest.approx(-20 / 3)
    assert content["config"]["options"]["query_enhancer"] is True


def test_runs_that_are_not_finished_do_not_count(tmp_path: Path) -> None:
    ablation = recorded(tmp_path, status="failed")
    assert [row.runs for row in table_of(ablation)] == [0, 0, 0, 0]
    assert "| 0 | – | – | – | – |" in as_markdown(ablation, table_of(ablation))
    assert as_csv(table_of(ablation)).count("\n") == 5


# ---------------------------------------------------------------------- running


@pytest.mark.usefixtures("quick_methods_and_stream")
def test_an_ablation_is_a_grid_of_variants(tmp_path: Path) -> None:
    ablation = an_ablation(tmp_path, "uw", seeds=1, jobs=0, command=["sodap", "ablate"])
    assert ablation.grid().methods == ["residual-sodap", "residual-sodap@uw=false"]
    summary = run_grid(ablation.grid())
    assert (summary.done, summary.finished, summary.failures) == (2, 0, {})
    assert run_grid(ablation.grid()).finished == 2

    record = read_record(tmp_path / "stripes" / "residual-sodap@uw=false" / "s0" / "record.json")
    assert record.config.options["uw"] is False
    assert (record.variant, record.search) == ("residual-sodap@uw=false", None)
    assert record.command == ["sodap", "ablate"]
    _, row = table_of(ablation)
    assert record.metrics.accuracy is not None
    assert row.scores["average_accuracy"][0] == record.metrics.accuracy.average_accuracy
    with pytest.raises(SodapError, match=r"another training\.lr"):
        run_grid(replace(ablation, changes=[*QUICK, "lr=0.5"]).grid())
