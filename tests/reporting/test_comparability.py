"""Settings that differ between the runs of a table are reported, unless they may differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sodap.reporting import Result, conclusion, load_results, make_tables
from sodap.reporting.tables.comparability import mixed_rows
from sodap.runs.record import RunRecord

from .records import a_record, edited, write

TRAINING = {"epochs": 8, "patience": 5, "batch_size": 64, "weight_decay": 0.01}


def a_run(
    method: str, seed: int = 0, *, edits: Mapping[str, Any] | None = None, **more: Any
) -> RunRecord:
    training = {f"config.training.{key}": value for key, value in TRAINING.items()}
    return a_record(method, seed, 0.8, edits=training | dict(edits or {}) | more)


def unequal(*records: RunRecord) -> list[str]:
    (table,) = make_tables(map(Result.of, records))
    return list(table.unequal)


@pytest.mark.parametrize(
    ("key", "value", "values"),
    [
        ("training.epochs", 1, "8 for `ridge` and 1 for"),
        ("training.patience", 9, "5 for `ridge` and 9 for"),
        ("training.batch_size", 2, "64 for `ridge` and 2 for"),
        ("training.weight_decay", 0.0, "0.01 for `ridge` and 0.0 for"),
        ("precision", "fp32", "auto for `ridge` and fp32 for"),
        ("split_seed", 3, "0 for `ridge` and 3 for"),
        ("splits", "a.csv", "none for `ridge` and a.csv for"),
    ],
)
def test_settings_that_differ_are_reported(key: str, value: Any, values: str) -> None:
    records = [a_run("ridge"), a_run("sequential", edits={f"config.{key}": value})]
    assert unequal(*records) == [f"{key} is {values} `sequential`"]
    (table,) = make_tables(map(Result.of, records))
    text = conclusion(table)
    assert text.startswith("Warning: ")
    assert f"{key} is {values} `sequential`" in text


def test_augmentation_that_differs_is_reported() -> None:
    other = a_run("sequential", edits={"config.training.augmentation": {"hflip": True}})
    (sentence,) = unequal(a_run("ridge"), other)
    assert sentence.startswith("training.augmentation is none for `ridge` and {")
    assert '"hflip": true' in sentence


def test_choices_of_a_method_and_a_machine_are_not_reported() -> None:
    other = a_run(
        "sequential",
        3,
        edits={
            "config.training.lr": 0.5,
            "config.options": {"pool_size": 3},
            "config.device": "cuda",
            "config.data": "/there",
            "environment.commit": "abc",
            "environment.gpu": "Abacus 9",
        },
    )
    assert unequal(a_run("ridge"), other) == []


def test_another_stream_of_the_same_name_is_reported() -> None:
    plain, other = a_run("ridge"), a_run("sequential")
    more = edited(other, edits={"stream.domains.1.counts.test": [10, 90]})
    counts = "number of images (train/val/test) is 20/4/20 for `ridge` and 20/4/110 for"
    assert unequal(plain, more) == [f"{counts} `sequential`"]
    (sentence,) = unequal(plain, edited(other, edits={"stream.domains.1.counts.test": [9, 1]}))
    assert '"test": [1, 9]' in sentence, "the sums are equal, so all counts are given"
    assert '"test": [9, 1]' in sentence
    names = {"stream.domains.0.name": "south", "stream.domains.1.name": "north"}
    assert unequal(plain, edited(other, edits=names)) == [
        "domains is north, south for `ridge` and south, north for `sequential`"
    ]
    assert unequal(plain, edited(other, edits={"stream.classes": ["sun", "hail"]})) == [
        "classes is sun, rain for `ridge` and sun, hail for `sequential`"
    ]


def test_other_weights_are_reported() -> None:
    records = [
        a_run(method, edits={"backbone.sha256": digest * 32})
        for method, digest in (("ridge", "aa"), ("sequential", "bb"))
    ]
    assert unequal(*records) == [
        "weights is SHA-256 aaaaaaaa for `ridge` and SHA-256 bbbbbbbb for `sequential`"
    ]


def test_training_settings_do_not_matter_in_closed_form() -> None:
    closed = a_run(
        "ridge", edits={"config.training.epochs": 100, "stages.0.epochs": 0, "stages.1.epochs": 0}
    )
    assert unequal(closed, a_run("sequential")) == []
    assert len(unequal(edited(closed, edits={"stages.0.epochs": 3}), a_run("sequential"))) == 1


def test_a_variant_may_differ_in_what_its_name_says() -> None:
    changed = a_run("l2p", edits={"config.training.epochs": 1, "variant": "l2p@epochs=1"})
    assert unequal(a_run("l2p"), changed) == []
    assert unequal(a_run("l2p"), edited(changed, edits={"config.training.patience": 1})) == [
        "training.patience is 5 for `l2p` and 1 for `l2p@epochs=1`"
    ]


def test_a_row_with_mixed_settings_differs_from_others() -> None:
    one, two = a_run("ridge"), a_run("ridge", 1, edits={"config.training.epochs": 1})
    assert unequal(one, two) == []
    assert unequal(one, two, a_run("l2p")) == [
        "training.epochs is 1 for `ridge` and 8 for `ridge` and `l2p`"
    ]


def test_large_groups_are_called_the_others() -> None:
    runs = [a_run(name) for name in ("ncm", "ridge", "slda", "l2p")]
    odd = a_run("sequential", edits={"config.training.epochs": 1})
    (few,) = unequal(*runs[:3], odd)
    assert few == "training.epochs is 1 for `sequential` and 8 for `ncm`, `ridge` and `slda`"
    (many,) = unequal(*runs, odd)
    assert many == "training.epochs is 1 for `sequential` and 8 for the others"


def test_lists_of_splits_count_and_not_how_they_were_made(tmp_path: Path) -> None:
    def found(one: str, other: str, edits: Mapping[str, Any] | None = None) -> list[str]:
        for method, rows in (("ridge", one), ("sequential", other)):
            record = a_run(method, edits=edits if method == "sequential" else None)
            write(tmp_path / method / "record.json", record)
            (tmp_path / method / "splits.csv").write_text(rows)
        (table,) = make_tables(load_results([tmp_path])[0])
        return list(table.unequal)

    assert found("a", "a", edits={"config.splits": "x.csv", "config.split_seed": 7}) == []
    assert found("a", "b", edits={"config.split_seed": 7}) == [
        "split_seed is 0 for `ridge` and 7 for `sequential`"
    ]
    (sentence,) = found("a", "b")
    assert sentence.startswith("splits.csv (SHA-256) is ca978112 for `ridge` and ")
    (tmp_path / "ridge" / "splits.csv").unlink()
    (table,) = make_tables(load_results([tmp_path])[0])
    assert table.unequal == []


def test_splits_are_compared_seed_by_seed() -> None:
    def run(method: str, seed: int, split_seed: int) -> RunRecord:
        return a_run(method, seed, edits={"config.split_seed": split_seed})

    rows = [run("ridge", seed, seed) for seed in range(3)]
    rows += [run("sequential", seed, seed) for seed in range(2)]
    assert unequal(*rows) == []
    crossed = [run("ridge", seed, seed) for seed in range(2)]
    crossed += [run("sequential", seed, 1 - seed) for seed in range(2)]
    assert unequal(*crossed) == ["split_seed is 0 for `ridge` and 1 for `sequential`"]


def test_runs_of_one_row_with_different_settings_are_found() -> None:
    runs = [a_record(method, seed) for method in ("l2p", "ridge") for seed in range(3)]
    assert mixed_rows(map(Result.of, runs)) == {}
    runs[1] = edited(runs[1], edits={"config.options": {"drift": {"window": 3}}})
    runs[-1] = edited(runs[-1], edits={"environment.commit": "abc", "environment.sodap": "9"})
    assert mixed_rows(map(Result.of, runs)) == {
        "l2p on weather": ["options.drift.window"],
        "ridge on weather": ["commit", "version"],
    }
