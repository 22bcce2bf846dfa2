"""Answers to single images survive texts, kept results and pooled folds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.conftest import TINY

from sodap.evaluation import confusion_matrix
from sodap.runs import load_config, run
from sodap.runs.answers import decode, encode
from sodap.runs.evidence import read_evidence
from sodap.runs.kept import KeptResult
from sodap.runs.pooling import pool_folds
from sodap.runs.reading import read_record
from sodap.runs.record import RunRecord
from sodap.streams.splits import read_splits


@given(st.lists(st.integers(0, 5000)))
def test_texts_keep_the_values(values: list[int]) -> None:
    assert decode(encode(values)).tolist() == values
    small = [value % 36 for value in values]
    assert len(encode(small)) == len(small)


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ridge on two folds of a folder with patients of two images each."""
    home = tmp_path_factory.mktemp("folds")
    lines = ["path,label,domain,group"]
    for domain in range(2):
        for number in range(16):
            path = home / f"{domain}-{number}.png"
            Image.new("RGB", (8, 8), (15 * number, 90 * domain, 0)).save(path)
            lines.append(f"{path.name},{'ab'[number // 8]},d{domain},p{domain}{number // 2}")
    (home / "own.csv").write_text("\n".join(lines))
    for number in (1, 2):
        changes = [f"stream={home / 'own.csv'}", "method=ridge", f"fold={number}/2", *TINY]
        run(load_config("default", changes), home / f"f{number}", command=["sodap"])
    return [home / "f1", home / "f2"]


def test_a_record_has_the_answers_of_its_evidence_and_the_groups_of_its_splits(
    folds: list[Path],
) -> None:
    record = read_record(folds[0] / "record.json")
    tests = [row for row in read_splits(folds[0] / "splits.csv") if row.split == "test"]
    groups: dict[str, set[int]] = {}
    for place, domain in enumerate(record.single_answers):
        for stage, evidence in enumerate(read_evidence(folds[0], 2)):
            assert domain.answers[stage].tolist() == evidence.predictions[place].tolist()
            found = confusion_matrix(domain.labels, domain.answers[stage], 2).tolist()
            assert found == record.confusions[stage][place]
        rows = [row for row in tests if row.domain == f"d{place}"]
        assert [int(label) for label in domain.labels] == ["ab".index(row.label) for row in rows]
        for row, unit in zip(rows, domain.units, strict=True):
            groups.setdefault(row.group, set()).add(int(unit))
    assert all(len(units) == 1 for units in groups.values())
    assert len({min(units) for units in groups.values()}) == len(groups)


def test_pooled_folds_have_every_image_once(folds: list[Path]) -> None:
    records = [read_record(folder / "record.json") for folder in folds]
    pooled = pool_folds(records)
    assert [sum(domain.counts.test) for domain in pooled.stream.domains] == [16, 16]
    assert pooled.config.fold is None
    units = np.concatenate([domain.units for domain in pooled.single_answers])
    assert (np.bincount(units) == 2).all(), "no group is in two folds, and none is missing"
    for stage in range(2):
        for domain, found in enumerate(pooled.single_answers):
            assert pooled.R.accuracy[stage][domain] == pytest.approx(found.right[stage].mean())
            assert found.confusions(2)[stage].tolist() == pooled.confusions[stage][domain]


def test_a_kept_result_has_answers_and_confusions(folds: list[Path]) -> None:
    record = read_record(folds[0] / "record.json")
    kept = KeptResult.of(record)
    again = KeptResult.model_validate(kept.model_dump(mode="json")).as_record()
    assert again.answers == record.answers
    assert again.confusions == record.confusions
    assert again.config.fold == "1/2"
    old = RunRecord.model_validate(record.model_dump() | {"answers": []})
    assert KeptResult.of(old).as_record().confusions == []
