"""Unreadable files: left out on request, listed, and named where they are not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

import sodap
from sodap.errors import SodapError, UnreadableImageError
from sodap.runs import load_config, run
from sodap.streams.plans import plan_folder, plan_table
from sodap.streams.splits import read_splits
from sodap.streams.unreadable import SKIPPED, without_unreadable


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two domains of 2 x 30 images, without flaws yet."""
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    for domain in ("one", "two"):
        for label, level in (("a", 50), ("b", 150)):
            folder = tmp_path / "clinic" / domain / label
            folder.mkdir(parents=True)
            for index in range(30):
                Image.new("RGB", (32, 32), (level, 8 * index, 0)).save(folder / f"{index}.png")
    return tmp_path / "clinic"


def spoil(clinic: Path) -> set[str]:
    """Damage files in several ways; returns their paths below the folder."""
    (clinic / "one" / "a" / "3.png").write_bytes(b"")
    (clinic / "one" / "b" / "5.png").write_bytes(b"not an image")
    (clinic / "two" / "a" / "loop.png").symlink_to("loop.png")
    (clinic / "two" / "b" / "gone.png").symlink_to("nowhere.png")
    return {"one/a/3.png", "one/b/5.png", "two/a/loop.png", "two/b/gone.png"}


def test_unreadable_files_are_left_out_and_the_others_keep_their_splits(clinic: Path) -> None:
    before = {(row.domain, row.path): row.split for row in plan_folder(clinic).rows()}
    bad = spoil(clinic)
    plan = plan_folder(clinic)
    kept = without_unreadable(plan)
    assert {each.path for each in kept.skipped} == bad
    assert all(each.reason and each.path not in each.reason for each in kept.skipped[:3])
    rows = kept.rows()
    assert {row.path for row in plan.rows()} - {row.path for row in rows} == bad
    own = [row for row in rows if row.domain == "one"]
    assert all(row.split == before[row.domain, row.path] for row in own)


def test_a_stream_without_unreadable_files(clinic: Path) -> None:
    bad = spoil(clinic)
    with pytest.raises(UnreadableImageError, match="skip_unreadable=true"):
        sodap.load_stream(str(clinic), 16)
    for _ in range(2):
        stream = sodap.load_stream(str(clinic), 16, skip_unreadable=True)
        assert {each.path for each in stream.skipped} == bad
        assert sum(len(split) for d in stream.domains for _, split in d.splits()) == 118
        assert sum("left out" in note for note in stream.notes) == 2


def test_files_that_a_table_lists_but_that_are_missing(clinic: Path) -> None:
    names = [f"two/{label}/{index}.png" for label in "ab" for index in range(30)] + ["gone.jpg"]
    table = clinic / "mine.csv"
    lines = [f"{name},{'a' if '/a/' in name else 'b'},two" for name in names]
    table.write_text("\n".join(["path,label,domain", *lines]))
    kept = without_unreadable(plan_table(table))
    assert [each.path for each in kept.skipped] == ["gone.jpg"]


def test_a_loop_of_links_names_its_file(clinic: Path) -> None:
    (clinic / "two" / "a" / "loop.png").symlink_to("loop.png")
    with pytest.raises(SodapError, match=r"two/a/loop\.png .*symbolic links"):
        sodap.load_stream(str(clinic), 16)


def test_a_run_lists_the_files_that_it_leaves_out(clinic: Path, tmp_path: Path) -> None:
    bad = spoil(clinic)
    changes = [f"stream={clinic}", "backbone=micro", "device=cpu", "skip_unreadable=true"]
    config, folder = load_config("ridge", changes), tmp_path / "run"
    record = run(config, folder)
    with (folder / SKIPPED).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["path"] for row in rows} == bad
    assert all(row["domain"] and row["reason"] for row in rows)
    assert len(read_splits(folder / "splits.csv")) == 118
    assert sum("left out" in note for note in record.stream.notes) == 2
    assert run(config, folder, resume=True) == record


def test_a_run_without_flaws_has_no_list(clinic: Path, tmp_path: Path) -> None:
    changes = [f"stream={clinic}", "backbone=micro", "device=cpu", "skip_unreadable=true"]
    run(load_config("ridge", changes), tmp_path / "run")
    assert not (tmp_path / "run" / SKIPPED).exists()
