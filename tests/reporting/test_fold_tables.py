"""Tables of folds: pooled answers, one family of differences, and columns from single answers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from sodap.cli.table import show_tables
from sodap.errors import SodapError
from sodap.evaluation import forgetting_by_chance, scores
from sodap.reporting import METRICS, Result, StreamTable, as_markdown, conclusion, make_tables
from sodap.reporting.tables.as_json import as_json_content
from sodap.runs.answers import StoredAnswers, encode
from sodap.runs.record import RunRecord

from .records import a_record, write

STAGES, IMAGES = 2, 40


def a_fold(method: str, seed: int, fold: str | None, share: float) -> RunRecord:
    """A run that answers about `share` of its images rightly; two images a patient."""
    number = 1 if fold is None else int(fold[0])
    rng = np.random.default_rng([len(method), seed, number])
    domains = []
    for domain in range(2):
        labels = np.random.default_rng([domain, number]).integers(2, size=IMAGES)
        units = 1000 * number + 100 * domain + np.arange(IMAGES) // 2
        right = rng.random((STAGES, IMAGES)) < share
        answers = np.where(right, labels, 1 - labels)
        domains.append(
            StoredAnswers(
                labels=encode(labels), units=encode(units), answers=[encode(a) for a in answers]
            )
        )
    found = [domain.decoded() for domain in domains]
    confusions = [[each.confusions(2)[stage].tolist() for each in found] for stage in range(STAGES)]
    accuracy = [[float(each.right[stage].mean()) for each in found] for stage in range(STAGES)]
    edits = {"config.fold": fold} | {
        f"stream.domains.{place}.counts.test": np.bincount(each.labels).tolist()
        for place, each in enumerate(found)
    }
    return a_record(
        method,
        seed,
        edits=edits,
        answers=[each.model_dump() for each in domains],
        confusions=confusions,
        R={"accuracy": accuracy, "macro_f1": accuracy},
    )


LEVELS = {"residual-sodap": 0.9, "ridge": 0.895, "l2p": 0.3, "joint": 0.91}


def folded(levels: dict[str, float] = LEVELS, seeds: int = 3) -> list[RunRecord]:
    return [
        a_fold(method, seed, f"{fold}/3", share)
        for method, share in levels.items()
        for seed in range(seeds)
        for fold in (1, 2, 3)
    ]


def table_of(records: Iterable[RunRecord]) -> StreamTable:
    (table,) = make_tables(map(Result.of, records))
    return table


def test_scores_are_those_of_all_images() -> None:
    table = table_of(folded())
    assert table.folds == 3
    assert "3 folds" in table.title
    assert table.seeds("ridge") == [0, 1, 2]
    for (method, seed), answers in table.answers.items():
        assert [len(domain.labels) for domain in answers] == [3 * IMAGES] * 2
        for key, value in scores(answers, 2).items():
            assert table.scores[method][key][seed] == pytest.approx(value)
        chance = table.scores[method]["forgetting_by_chance"][seed]
        assert chance == forgetting_by_chance(answers)


def test_a_run_without_all_folds_is_left_out() -> None:
    records = folded()
    table = table_of(records[:-1])
    assert table.seeds("joint") == [0, 1]
    assert table.left_out == ["joint seed 2 (2 of 3 folds)"]
    assert make_tables([Result.of(records[0])]) == []
    with pytest.raises(SodapError, match="two runs of residual-sodap with seed 0 and fold 1/3"):
        table_of([*records, records[0]])


def test_other_folds_are_another_table() -> None:
    usual = [a_fold("ridge", seed, None, 0.9) for seed in range(3)]
    tables = make_tables(map(Result.of, [*folded(), *usual]))
    assert [table.folds for table in tables] == [3, None]


def test_cells_json_and_words_have_the_same_differences() -> None:
    table = table_of(folded(seeds=5))
    family = table.family("residual-sodap", "average_accuracy")
    assert family.keys() == {"ridge", "l2p", "joint"}
    lower, near = family["l2p"], family["ridge"]
    assert lower is not None
    assert lower.significant
    assert near is not None
    assert not near.significant
    (shown,) = as_json_content([table], list(METRICS.values()), StreamTable.reference)["tables"]
    assert "bootstrap" in shown["difference_intervals"]
    for row in shown["rows"]:
        found = family.get(row["method"])
        assert row["average_accuracy"]["difference"] == (
            None
            if found is None
            else {
                "mean": found.mean,
                "low": found.low,
                "high": found.high,
                "common_seeds": 5,
                "p": found.p,
                "significant": found.significant,
            }
        )
    text = conclusion(table)
    assert f"p = {near.p:.3f}" in text
    assert "by chance" in text
    cells = as_markdown(table, list(METRICS.values()), "residual-sodap")
    assert f"{near.mean:+.3f} ({near.low:+.3f}, {near.high:+.3f})" in cells
    assert "AvgF by chance" in cells.splitlines()[0]
    assert f"`l2p`, {-lower.mean:.3f}" in conclusion(
        table_of(r for r in folded(seeds=5) if r.config.method in ("residual-sodap", "l2p"))
    )


def test_without_answers_of_every_run_the_intervals_are_students() -> None:
    some = folded()
    bare = RunRecord.model_validate(some[0].model_dump() | {"answers": []})
    table = table_of([bare, *some[1:]])
    assert not table.answers
    assert "Student" in table.intervals
    assert table.family("residual-sodap", "average_accuracy")["l2p"] is not None


def test_the_command_pools_folds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    for number, record in enumerate(folded({"residual-sodap": 0.9, "l2p": 0.6})[:-1]):
        write(tmp_path / str(number) / "record.json", record)
    show_tables(Console(width=80), [tmp_path], "text", None, ())
    shown = capsys.readouterr()
    assert "3 folds" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    heads = next(line for line in shown.out.splitlines() if line.startswith("method"))
    assert heads.split()[2:6] == ["AvgACC", "AvgF", "by", "chance"]
    assert "rarest" in shown.out
    assert "folds missing: l2p seed 2" in shown.err
    assert "differ in" not in shown.err
    with pytest.raises(SodapError, match="all folds"):
        show_tables(Console(), [tmp_path / "0"], "text", None, ())
