"""Methods that were trained or tested on different terms are not compared without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sodap.reporting import find_records, make_tables, verdict
from tests.reporting.made_runs import a_record, write

TRAINING = {
    "epochs": 8,
    "patience": 5,
    "batch_size": 64,
    "weight_decay": 0.01,
    "augmentation": None,
}
CONFIG = {"precision": "auto", "split_seed": 0, "splits": None, "image_size": None}


def a_run(method: str, seed: int = 0, training: Any = (), **changes: Any) -> dict[str, Any]:
    record = a_record(method, seed, 0.8)
    record["config"] |= {**CONFIG, "training": {**TRAINING, **dict(training)}, **changes}
    return record


def unequal(*records: dict[str, Any]) -> list[str]:
    (table,) = make_tables(records)
    return list(table.unequal)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("epochs", 1, "training.epochs is 8 for `ridge` and 1 for `sequential`"),
        ("patience", 9, "training.patience is 5 for `ridge` and 9 for `sequential`"),
        ("batch_size", 2, "training.batch_size is 64 for `ridge` and 2 for `sequential`"),
        ("weight_decay", 0.0, "training.weight_decay is 0.01 for `ridge` and 0.0 for `sequential`"),
        (
            "augmentation",
            {"flip": True},
            'training.augmentation is none for `ridge` and {"flip": true} for `sequential`',
        ),
    ],
)
def test_training_that_differs_is_told(key: str, value: Any, words: str) -> None:
    other = a_run("sequential", training={key: value})
    assert unequal(a_run("ridge"), other) == [words]
    (table,) = make_tables([a_run("ridge"), other])
    assert verdict(table).startswith(f"Warning: not on equal terms: {words}. `")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("precision", "fp32", "precision is auto for `ridge` and fp32 for `sequential`"),
        ("split_seed", 3, "split_seed is 0 for `ridge` and 3 for `sequential`"),
        ("splits", "a.csv", "splits is none for `ridge` and a.csv for `sequential`"),
    ],
)
def test_settings_that_differ_are_told(key: str, value: Any, words: str) -> None:
    assert unequal(a_run("ridge"), a_run("sequential", **{key: value})) == [words]


def test_what_a_method_or_a_machine_may_choose_is_not_told() -> None:
    free = {"lr": 0.5, "cuda_graphs": False, "compile": True}
    other = a_run("sequential", 3, free, options={"pool_size": 3}, device="cuda", data="/there")
    other["environment"] = {"commit": "abc", "gpu": "Abacus 9", "sodap": "9"}
    assert unequal(a_run("ridge"), other) == []
    bare = a_record("l2p", 0, 0.7)  # says nothing of its training
    assert unequal(a_run("ridge"), bare) == []
    (table,) = make_tables([a_run("ridge"), other])
    assert "equal terms" not in verdict(table)


def test_another_stream_of_the_same_name_is_told() -> None:
    plain, other = a_run("ridge"), a_run("sequential")
    north, south = other["stream"]["domains"]
    south["counts"]["test"] = [10, 90]
    counts = "number of images (train/val/test) is 20/4/20 for `ridge` and 20/4/110 for"
    assert unequal(plain, other) == [f"{counts} `sequential`"]
    south["counts"]["test"] = [9, 1]  # as many, of other classes
    (words,) = unequal(plain, other)
    assert '"test": [1, 9]' in words
    assert '"test": [9, 1]' in words
    south["counts"]["test"] = [1, 9]
    assert unequal(plain, other) == []
    other["stream"] = {**other["stream"], "domains": [south, north]}
    assert "domains is north, south for `ridge` and south, north for" in "; ".join(
        unequal(plain, other)
    )
    other["stream"] = {**plain["stream"], "classes": ["sun", "hail"]}
    assert unequal(plain, other) == [
        "classes is sun, rain for `ridge` and sun, hail for `sequential`"
    ]


def test_other_weights_are_told() -> None:
    plain, other = a_run("ridge"), a_run("sequential")
    for record, digest in ((plain, "aa" * 32), (other, "bb" * 32)):
        record["backbone"]["sha256"] = digest
    words = "weights is SHA-256 aaaaaaaa for `ridge` and SHA-256 bbbbbbbb for `sequential`"
    assert unequal(plain, other) == [words]


def test_a_closed_form_has_no_epochs_to_be_equal() -> None:
    closed = a_run("ridge", training={"epochs": 100})
    for stage in closed["stages"]:
        stage["epochs"] = 0
    assert unequal(closed, a_run("sequential")) == []
    closed["stages"][0]["epochs"] = 3
    assert len(unequal(closed, a_run("sequential"))) == 1


def test_a_variant_may_differ_in_what_its_name_says() -> None:
    changed = a_run("l2p", training={"epochs": 1}) | {"variant": "l2p@epochs=1"}
    assert unequal(a_run("l2p"), changed) == []
    changed["config"]["training"]["patience"] = 1
    assert unequal(a_run("l2p"), changed) == [
        "training.patience is 5 for `l2p` and 1 for `l2p@epochs=1`"
    ]


def test_a_row_that_is_mixed_in_itself_is_another_matter() -> None:
    one, two = a_run("ridge"), a_run("ridge", 1, {"epochs": 1})
    assert unequal(one, two) == []
    words = "training.epochs is 1 for `ridge` and 8 for `ridge` and `l2p`"
    assert unequal(one, two, a_run("l2p")) == [words]


def test_many_are_the_others() -> None:
    names = ("ncm", "ridge", "slda", "l2p")
    runs = [a_run(name) for name in names]
    few, *_ = unequal(*runs[:3], a_run("sequential", training={"epochs": 1}))
    assert few == "training.epochs is 1 for `sequential` and 8 for `ncm`, `ridge` and `slda`"
    many, *_ = unequal(*runs, a_run("sequential", training={"epochs": 1}))
    assert many == "training.epochs is 1 for `sequential` and 8 for the others"


def test_the_list_of_splits_counts_and_not_how_it_was_made(tmp_path: Path) -> None:
    def told(one: str, other: str, **changes: Any) -> list[str]:
        for method, rows in (("ridge", one), ("sequential", other)):
            record = a_run(method, **(changes if method == "sequential" else {}))
            write(tmp_path / method / "record.json", record)
            (tmp_path / method / "splits.csv").write_text(rows)
        return unequal(*(dict(record) for record in find_records([tmp_path])[0]))

    assert told("a", "a", splits="ridge/splits.csv", split_seed=7) == []
    assert told("a", "b", split_seed=7) == ["split_seed is 0 for `ridge` and 7 for `sequential`"]
    (words,) = told("a", "b")
    assert words.startswith("splits.csv (SHA-256) is ca978112 for `ridge` and ")
    (tmp_path / "ridge" / "splits.csv").unlink()
    assert unequal(*(dict(record) for record in find_records([tmp_path])[0])) == []


def test_splits_are_compared_seed_by_seed() -> None:
    rows = [a_run("ridge", seed, split_seed=seed) for seed in range(3)]
    rows += [a_run("sequential", seed, split_seed=seed) for seed in range(2)]  # not finished yet
    assert unequal(*rows) == []
    crossed = [a_run("ridge", seed, split_seed=seed) for seed in range(2)]
    crossed += [a_run("sequential", seed, split_seed=1 - seed) for seed in range(2)]
    assert unequal(*crossed) == ["split_seed is 0 for `ridge` and 1 for `sequential`"]
