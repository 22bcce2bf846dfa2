"""The schema reads what every version has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sodap.errors import SodapError
from sodap.runs.kept import KeptResult
from sodap.runs.reading import read_log, read_record, without_record
from sodap.runs.record import FORMAT, DriftInfo, RunRecord, StageInfo
from sodap.storage import write_json

GOLDEN = Path(__file__).parent / "golden"
RESULTS = Path(__file__).parents[2] / "results"


def content(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return found


@pytest.mark.parametrize("name", ["record-1-first.json", "record-1-last.json"])
def test_a_record_of_format_1_is_upgraded(name: str, tmp_path: Path) -> None:
    old, record = content(name), read_record(GOLDEN / name)
    assert "format" not in old
    assert record.format == FORMAT
    assert record.config.training.epochs == 1
    assert record.config.options == old["config"]["options"]
    assert record.R.accuracy == old["R"]["accuracy"]
    assert record.metrics.accuracy is not None
    assert record.metrics.accuracy.model_dump() == old["metrics"]["accuracy"]
    assert [stage.stored_bytes for stage in record.stages] == [
        sum(asset["bytes"] for asset in stage["stored"]) for stage in old["stages"]
    ]
    drift = record.stages[1].begun.drift
    assert drift is not None
    assert (drift.score, drift.added) == (
        old["stages"][1]["begun"]["drift"]["score"],
        old["stages"][1]["begun"]["drift"]["added"],
    )
    # Written in the present format, it is the same record.
    write_json(tmp_path / "record.json", record.model_dump(mode="json"))
    assert read_record(tmp_path / "record.json") == record


def test_keys_that_only_a_method_knows_are_kept() -> None:
    info = StageInfo.model_validate({"penalty": 0.5, "pool": {"frozen": 1, "active": 2}})
    dumped = {"penalty": 0.5, "pool": {"frozen": 1, "active": 2, "unused": None}}
    assert info.model_dump() == dumped
    assert StageInfo().model_dump() == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": FORMAT + 1}, "update sodap"),
        ({"format": "two"}, "update sodap"),
        ({"stages": 3}, "not the record of a run"),
        ({"R": {}}, r"'R\.accuracy': field required"),
        ({"status": "sleeping"}, "'status'"),
    ],
)
def test_a_file_that_is_not_a_record_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    write_json(path, content("record-1-last.json") | changes)
    with pytest.raises(SodapError, match=words) as refusal:
        read_record(path)
    assert str(path) in str(refusal.value)


def test_every_kept_result_can_be_read_and_kept_again() -> None:
    files = sorted(f for f in RESULTS.glob("*/*-s0.json"))
    assert len(files) > 50
    for file in files:
        record = read_record(file)
        on_disk = json.loads(file.read_text())
        assert record.status == "finished"
        assert record.row == file.stem.removesuffix("-s0")
        assert record.R.accuracy == on_disk["R"]["accuracy"]
        kept = KeptResult.of(record).model_dump(mode="json")
        for ours, theirs in zip(kept["stages"], on_disk["stages"], strict=True):
            assert ours | {"drift": None} == theirs | {
                "drift": None,  # of the drift, only the score was kept
                "pool": theirs["pool"] and {"unused": None} | theirs["pool"],
            }
        config = on_disk["config"]
        config["training"]["cuda_graphs"] = config["training"].pop("record_steps")  # renamed
        new: dict[str, object] = {"groups": "separate", "classes": None}  # defaults
        new |= {"skip_unreadable": False, "fold": None}
        assert kept["config"] == new | config


def test_only_a_finished_run_is_a_result() -> None:
    record = read_record(GOLDEN / "record-1-last.json")
    kept = KeptResult.of(record.model_copy(update={"command": ["/opt/bin/sodap", "run"]}))
    assert kept.command == ["sodap", "run"]
    assert kept.as_record().metrics.accuracy == record.metrics.accuracy
    drift = record.stages[1].begun.drift
    assert drift is not None
    assert kept.stages[1].drift == drift.score
    with pytest.raises(SodapError, match="interrupted"):
        KeptResult.of(record.model_copy(update={"status": "interrupted"}))


def test_a_log_is_read_line_by_line(tmp_path: Path) -> None:
    rows, damaged = read_log(GOLDEN / "log-1.jsonl")
    assert [(row.stage, row.epoch) for row in rows] == [(1, 1), (2, 1)]
    assert damaged == 0
    assert read_log(tmp_path / "log.jsonl") == ([], 0)
    lines = (GOLDEN / "log-1.jsonl").read_text().splitlines()
    (tmp_path / "log.jsonl").write_text("\n".join([lines[0], '{"stage"', "[1]", "{}", lines[1]]))
    assert read_log(tmp_path / "log.jsonl") == (rows, 3)


def test_a_run_without_a_record_has_a_configuration() -> None:
    record = without_record(read_record(GOLDEN / "record-1-last.json").config, "killed early")
    assert (record.status, record.note) == ("no record", "killed early")
    assert not record.stages
    assert not record.R.accuracy
    assert RunRecord.model_validate(record.model_dump(mode="json")) == record


@pytest.mark.parametrize(
    ("past", "needed", "few"), [(3, 10, True), (10, 10, False), (None, None, False)]
)
def test_drift_over_few_batches_says_little(
    past: int | None, needed: int | None, few: bool
) -> None:
    drift = DriftInfo(
        score=0.1, scores=[], null_band=None, added=0, past_batches=past, needed_batches=needed
    )
    assert (drift.too_few is not None) == few
