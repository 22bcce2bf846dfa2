"""The page about several runs compares them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sodap.errors import SodapError
from sodap.reporting import METRICS, LoadedRun, Result, load_runs, make_tables, write_report
from sodap.reporting.loading import labelled
from sodap.reporting.pages.accuracy import matrix_table
from sodap.reporting.pages.blocks import Card, Paragraph
from sodap.reporting.pages.comparison import comparison_sections, method_table, runs_table
from sodap.reporting.pages.differences import differences_table, images_table
from sodap.reporting.pages.report import page_of, report_page
from sodap.reporting.tables.formats import method_rows
from sodap.reporting.tables.table import Cell, Table
from sodap.streams.splits import SplitRow
from tests.conftest import make_stream

from .page_reader import PageReader
from .records import a_record, edited

ACCURACY = METRICS["average_accuracy"]


@pytest.fixture
def pair(several: list[LoadedRun]) -> list[LoadedRun]:
    """Runs of two methods with the same seed."""
    return [run for run in several if run.seed == 0 and run.finished]


def changed(run: LoadedRun, edits: Mapping[str, Any] | None = None, **more: Any) -> LoadedRun:
    return replace(run, record=edited(run.record, edits=edits, **more))


def differences(runs: list[LoadedRun], against: str | None = None) -> list[Table | Paragraph]:
    (section,) = [s for s in comparison_sections(runs, against) if s.key == "differences"]
    return [block for block in section.blocks if isinstance(block, Table | Paragraph)]


def test_every_run_has_a_row_and_a_matrix(several: list[LoadedRun]) -> None:
    table = runs_table(several)
    for row, found in zip(table.rows, several, strict=True):
        cell = row[list(table.heads).index("AvgACC")]
        assert isinstance(cell, Cell)
        assert cell.value == ACCURACY.of(found.record)
    cards = [b for s in comparison_sections(several) for b in s.blocks if isinstance(b, Card)]
    assert [card.tag for card in cards] == list(table.tags)
    for card, found in zip(cards, several, strict=True):
        values = [[c.value for c in row if isinstance(c, Cell)] for row in card.table.rows]
        assert values == found.record.R.accuracy
        assert card.table == matrix_table(found, shaded=True)


def test_methods_and_streams_as_in_the_paper(several: list[LoadedRun]) -> None:
    runs = [Result.of(run.record) for run in several if run.finished]
    table = method_table(make_tables(runs))
    assert table.heads == ["Method", "stripes final", "stripes AvgACC", "stripes AvgF"]
    shown = {row[0]: row[2] for row in table.rows}
    scores = [ACCURACY.of(run.record) or 0.0 for run in runs if run.row == "sequential"]
    cell = shown["sequential"]
    assert isinstance(cell, Cell)
    assert cell.value == pytest.approx(np.mean(scores))
    assert cell.text == f"{np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f}"
    assert "constant" in shown


def test_a_variant_has_one_name(several: list[LoadedRun]) -> None:
    plain, name = several[1], "sequential@faithful"
    variant = changed(plain, variant=name, edits={"config.options": {"faithful": True}})
    runs = labelled([plain, variant])
    sections = comparison_sections(runs)
    page = report_page(runs, sections)
    assert "faithful=" not in page
    assert "2 runs of 2 methods on stripes" in page
    (figure,) = [block for section in sections for block in section.figures]
    legend = {line.get_label() for line in figure.figure.axes[0].lines}
    assert {"1: sequential", f"2: {name}"} <= legend
    first = [
        [row[0] for row in block.rows]
        for section in sections
        for block in section.blocks
        if isinstance(block, Table)
    ]
    assert ["sequential", name, "constant"] in first
    assert [name] in first, "the variant minus its method"


# ------------------------------------------------------------------ differences


def test_differences_by_image(pair: list[LoadedRun]) -> None:
    ((name, _, cell, *_),) = images_table(pair, "residual-sodap").rows
    assert name == "sequential"
    ours, theirs = (ACCURACY.of(run.record) or 0.0 for run in pair)
    assert isinstance(cell, Cell)
    assert cell.value == pytest.approx(theirs - ours)


def paired_by_image(runs: list[LoadedRun]) -> list[list[Any]]:
    tables = [b for b in differences(runs) if isinstance(b, Table) and "by test image" in b.caption]
    return [[row[0] for row in table.rows] for table in tables]


@pytest.mark.parametrize(
    "edits",
    [
        {"config.split_seed": 3},
        {"config.splits": "a.csv"},
        {"config.stream": "elsewhere"},
        {"stream.classes": ["x", "y", "z"]},
    ],
)
def test_runs_with_other_test_images_are_not_paired(
    pair: list[LoadedRun], edits: dict[str, Any]
) -> None:
    one, two = pair
    assert paired_by_image([one, two]) == [["sequential"]]
    other = changed(two, edits)
    assert paired_by_image([one, other]) == []
    (note,) = [block.text for block in differences([one, other]) if isinstance(block, Paragraph)]
    assert "stripes, seed 0" in note
    assert "residual-sodap | sequential" in note


def test_lists_of_splits_decide_whether_test_images_are_the_same(pair: list[LoadedRun]) -> None:
    one, two = pair
    rows = [SplitRow("domain 0", f"{n}.png", "x", "x", "", "test") for n in range(3)]
    train = SplitRow("domain 0", "t.png", "x", "x", "", "train")
    listed = replace(one, splits=rows)
    same = changed(two, edits={"config.split_seed": 3, "config.splits": "a.csv"})
    assert paired_by_image([listed, replace(same, splits=[train, *rows])]) == [["sequential"]]
    fewer = changed(two, edits={"stream.domains.0.counts.train": [1, 1, 1]})
    assert paired_by_image([listed, replace(fewer, splits=rows)]) == [["sequential"]]
    assert paired_by_image([listed, replace(two, splits=rows[::-1])]) == []
    assert paired_by_image([listed, replace(two, splits=rows[:2])]) == []


def test_unequal_settings_are_a_warning(pair: list[LoadedRun]) -> None:
    def conclusion_of(*runs: LoadedRun) -> Paragraph:
        (section,) = [s for s in comparison_sections(runs) if s.key == "table"]
        return [block for block in section.blocks if isinstance(block, Paragraph)][-1]

    one, two = pair
    assert conclusion_of(one, two).tone == "plain"
    warned = conclusion_of(one, changed(two, edits={"config.training.epochs": 9}))
    assert warned.tone == "warning"
    assert "training.epochs is 2 for `residual-sodap` and 9 for `sequential`" in warned.text


def test_the_page_and_the_table_have_the_same_bold_differences() -> None:
    """Corrected for all comparisons: a difference may be significant alone, but not among many."""
    reference = [0.700, 0.704, 0.698, 0.703, 0.699]
    levels = {"first": reference, "near": [0.6985, 0.7000, 0.6970, 0.7005, 0.6985]}
    levels |= {
        f"m{n}": [x + 0.001 * ((n + k) % 3 - 1) for k, x in enumerate(reference)] for n in range(19)
    }
    records = [
        a_record(method, seed, edits={"R.accuracy": [[level, 0.3], [level] * 2]})
        for method, values in levels.items()
        for seed, level in enumerate(values)
    ]
    (table,) = make_tables(map(Result.of, records))
    gap = table.difference("near", "first", ACCURACY.key)
    assert gap is not None
    assert gap.significant
    expected = {row[0].text: row[-1] for row in method_rows(table, [ACCURACY], "first")}
    assert not any(cell.bold for cell in expected.values())
    for name, _, cell, *_ in differences_table(table, "first").rows:
        assert isinstance(cell, Cell)
        assert cell == expected[str(name)]


def test_the_reference_can_be_chosen(pair: list[LoadedRun]) -> None:
    def captions(runs: list[LoadedRun], against: str | None = None) -> list[str]:
        return [b.caption for b in differences(runs, against) if isinstance(b, Table)]

    for against, expected in ((None, "residual-sodap"), ("sequential", "sequential")):
        found = captions(pair, against)
        assert len(found) == 2
        assert all(f"minus {expected}, paired" in caption for caption in found)
    with pytest.raises(SodapError, match="no run of 'magic' on stripes"):
        comparison_sections(pair, "magic")


# ------------------------------------------------------------------ the page


def test_the_page_of_several_runs(several: list[LoadedRun], comparison: Path) -> None:
    page = PageReader(comparison.read_text("utf-8"))
    assert "5 runs of 3 methods on stripes" in page.text
    assert "is incomplete (failed: StopError: the plug was pulled)" in page.text
    keys = ["table", "runs", "differences", "matrices", "problems", "origin"]
    assert [section.key for section in comparison_sections(several)] == keys
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith(("data:", "#")) for address in page.addresses)


def test_few_runs_are_side_by_side_at_the_top(pair: list[LoadedRun], tmp_path: Path) -> None:
    """As in the demo: matrices, forgetting, what was forgotten, images, a link to each run."""
    shown = [replace(run, stream=make_stream(3, 3), no_stream="") for run in pair]
    first = page_of(pair[0])
    assert first is not None
    first.parent.mkdir()
    first.touch()
    try:
        page = PageReader(write_report(shown, tmp_path / "out").read_text("utf-8"))
    finally:
        first.unlink()
        first.parent.rmdir()
    assert Path(os.path.normpath(tmp_path / "out" / page.links[-1])) == first
    matrices, stream, *_ = comparison_sections(shown)
    assert (matrices.key, stream.key) == ("matrices", "stream")
    *cards, _, changes = matrices.blocks
    assert [type(card) for card in cards] == [Card, Card]
    assert isinstance(changes, Table)
    for run, row in zip(pair, changes.rows, strict=True):
        R = run.record.R.accuracy
        values = [cell.value for cell in row if isinstance(cell, Cell)]
        assert values == [R[2][0] - R[0][0], R[2][1] - R[1][1]]
        metrics = run.record.metrics.accuracy
        assert metrics is not None
        assert f"{run.name} {metrics.average_forgetting:.3f}" in page.text
        assert f"{run.name} {metrics.average_accuracy:.3f}" in page.text


def test_after_one_stage_nothing_is_forgotten(pair: list[LoadedRun]) -> None:
    runs = [
        changed(
            run,
            R={"accuracy": [[0.9, 0.1, 0.1]], "macro_f1": [[0.9, 0.1, 0.1]]},
            stages=[run.record.stages[0].model_dump()],
        )
        for run in pair
    ]
    page = report_page(runs, [])
    assert "nothing to forget" in page
    assert "0.900" in page
    assert len(comparison_sections(runs)) > 3


def test_the_origin_can_be_typed_and_marks_changed_code(several: list[LoadedRun]) -> None:
    odd = changed(several[0], edits={"environment.commit": "a" * 40 + "+changes"})
    plain = changed(several[1], edits={"environment.commit": "b" * 40})
    (section,) = [s for s in comparison_sections([odd, plain]) if s.key == "origin"]
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    assert table.rows[0][2] == "sodap run default 'data=my dir'"
    assert [row[4] for row in table.rows] == ["a" * 12 + "+changes", "b" * 12]


def test_unfinished_runs_can_be_listed(home: Path) -> None:
    broken = load_runs([home / "failed", home / "stopped"])
    page = report_page(broken, comparison_sections(broken))
    assert page.count("is incomplete") >= 2


def test_every_table_is_rectangular(several: list[LoadedRun]) -> None:
    blocks = [block for section in comparison_sections(several) for block in section.blocks]
    tables = [block for block in blocks if isinstance(block, Table)]
    assert len(tables) >= 4
    for table in tables:
        assert all(len(row) == len(table.heads) for row in table.rows), table.caption


def test_a_problem_that_runs_share_is_told_once(pair: list[LoadedRun]) -> None:
    notes = [["The labels are noisy."], ["The labels are noisy.", "Some lesions occur twice."]]
    runs = [
        changed(run, {"stream.notes": each}) for run, each in zip(pair, notes, strict=True)
    ]  # fmt: skip
    (section,) = [each for each in comparison_sections(runs) if each.key == "problems"]
    texts = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    assert "All runs: The labels are noisy." in texts
    assert f"2, {runs[1].title}: Some lesions occur twice." in texts
    three = comparison_sections([*runs, replace(runs[1], label="other")])
    (section,) = [each for each in three if each.key == "problems"]
    texts = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    assert "Runs 2 and 3: Some lesions occur twice." in texts


def test_a_page_has_intervals_of_one_kind(pair: list[LoadedRun]) -> None:
    """Over images if there is one seed; over seeds, or both, if there are three."""

    def captions(runs: list[LoadedRun]) -> list[str]:
        return [block.caption for block in differences(runs) if isinstance(block, Table)]

    def kinds(runs: list[LoadedRun]) -> list[bool]:
        text = " ".join(captions(runs))
        return [each in text for each in ("Student", "exact intervals", "bootstrap")]

    assert kinds(pair) == [False, True, False]
    many = [changed(run, {"config.seed": seed}) for run in pair for seed in range(3)]
    assert kinds(many) == [False, False, True]
    assert kinds([changed(run, {"answers": []}) for run in many]) == [True, False, False]
