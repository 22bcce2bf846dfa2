"""Runs are loaded from folders, even if they are incomplete or damaged."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sodap.errors import SodapError
from sodap.reporting import LoadedRun, load_runs, with_composition, with_stream
from sodap.reporting.loading import labelled, load_run
from sodap.reporting.pages.blocks import Paragraph
from sodap.reporting.pages.origin import problems
from sodap.reporting.pages.report import report_page
from sodap.reporting.pages.sections import run_sections
from sodap.reporting.pages.training import training_section
from sodap.reporting.tables.table import Table

from .page_reader import PageReader
from .records import edited


def page_of(run: LoadedRun) -> str:
    return PageReader(report_page([run], run_sections(run))).text


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be damaged."""
    shutil.copytree(home / "sodap-0", tmp_path / "run")
    return tmp_path / "run"


# ------------------------------------------------------------------ incomplete runs


@pytest.mark.parametrize(
    ("name", "stages", "reason"),
    [
        ("failed", 1, "failed: StopError: the plug was pulled"),
        ("stopped", 0, "interrupted: stopped by the user"),
    ],
)
def test_a_run_that_was_broken_off(home: Path, name: str, stages: int, reason: str) -> None:
    found = load_run(home / name)
    assert len(found.stages) == stages
    text = page_of(found)
    assert f"is incomplete ({reason})" in text
    assert f"It has learned {stages} of 3 domains." in text
    assert "Losses of residual-sodap" in text  # of the finished epochs


def test_a_run_that_was_killed_at_the_start(home: Path, tmp_path: Path) -> None:
    shutil.copy(home / "sodap-0" / "config.json", tmp_path)
    (found,) = load_runs([tmp_path])
    assert found.record.note == "it ended before it wrote a record"
    assert found.record.config.seed == 0
    assert "ended before it wrote a record" in page_of(found)


def test_without_steps_there_are_epochs(copy: Path) -> None:
    shutil.rmtree(copy / "steps")
    note, table, *_ = training_section(load_run(copy)).blocks
    assert isinstance(note, Paragraph)
    assert "has not saved the steps" in note.text
    assert isinstance(table, Table)
    assert len(table.rows) == 6


# ------------------------------------------------------------------ damaged files


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("record.json", '{"status": "fin', "record.json"),
        ("record.json", '{"status": "finished"}', "record.json"),
        ("splits.csv", "domain,path\nnorth", "splits.csv"),
        ("log.jsonl", "[1, 2]\n{", "2 lines of log.jsonl"),
        ("evidence/composition.json", '{"accuracy": 3}', "composition.json"),
    ],
)
def test_damaged_files_are_problems(copy: Path, file: str, content: str, problem: str) -> None:
    (copy / file).write_text(content)
    (found,) = load_runs([copy])
    (text,) = found.problems
    assert problem in text
    assert any(problem in text for text in problems(found))
    assert {"accuracy", "problems"} <= {section.key for section in run_sections(found)}


def test_damaged_tensors_are_problems(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("evidence", "steps"):
        next((copy / folder).glob("stage-2-*")).write_bytes(b"broken")
    monkeypatch.chdir(copy.parent)
    found = load_run(Path(copy.name))
    (text,) = [each for each in problems(found) if "evidence" in each]
    assert re.match(r"run/evidence/stage-2-\w+\.safetensors is damaged: .+\.$", text)
    note = training_section(found).blocks[0]
    assert isinstance(note, Paragraph)
    assert "is damaged" in note.text
    shutil.rmtree("run/evidence")
    (text,) = [each for each in problems(load_run(Path("run"))) if "evidence" in each]
    assert "3 of 3 stages have no evidence" in text


# ------------------------------------------------------------------ images and composition


def test_the_stream_must_be_that_of_the_run(home: Path) -> None:
    run = load_run(home / "sodap-0")
    other = replace(run, record=edited(run.record, edits={"config.stream": "digits-mini"}))
    found = with_stream(other)
    assert found.stream is None
    assert "is not the stream of this run" in found.no_stream
    missing = replace(run, record=edited(run.record, edits={"config.stream": "nowhere"}))
    assert "'nowhere'" in with_stream(missing).no_stream


def test_composition_needs_the_images(home: Path) -> None:
    run = replace(load_run(home / "plain-0"), no_stream="the disk is gone")
    assert with_composition(run).no_composition == "the disk is gone"


# ------------------------------------------------------------------ finding and naming runs


def test_runs_are_found_in_folders(home: Path, tmp_path: Path) -> None:
    found = load_runs([home])
    assert [run.folder.name for run in found if run.folder] == sorted(
        path.name for path in home.iterdir()
    )
    for place in ("search/sequential/s0", "search/sequential/search/0"):
        shutil.copytree(home / "plain-0", tmp_path / place)
    assert [run.folder for run in load_runs([tmp_path])] == [tmp_path / "search/sequential/s0"]


@pytest.mark.parametrize("content", [None, '{"a": 1}', "no json"])
def test_what_is_not_a_run(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "record"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SodapError, match="record"):
        load_runs([path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SodapError, match="found no run in"):
        load_runs([tmp_path / "empty"])


def test_labels_tell_runs_of_one_method_apart(several: list[LoadedRun]) -> None:
    plain = several[1]
    other = replace(plain, record=edited(plain.record, edits={"config.training.lr": 0.5}))
    one, two = labelled([plain, other])
    assert two.label == "sequential lr=0.5"
    assert one.label != two.label
    assert [run.label for run in labelled([plain, plain])] == ["sequential", "sequential (2)"]
    name = "sequential@faithful"
    edits = {"variant": name, "config.options": {"faithful": True}}
    variant = replace(plain, record=edited(plain.record, edits=edits))
    assert [run.label for run in labelled([plain, variant])] == ["sequential", name]
