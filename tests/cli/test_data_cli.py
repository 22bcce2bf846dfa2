"""`sodap data`: output, files and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.stats import binomtest  # type: ignore[import-untyped]
from typer.testing import CliRunner, Result

from sodap.cli import data
from sodap.cli.data import app
from sodap.errors import SodapError
from sodap.evaluation import tiny_tests
from sodap.streams import load_stream
from sodap.streams.catalogue import find_source, source_names
from sodap.streams.loading import SplitGroupWarning
from sodap.streams.protocols import protocol_names
from sodap.streams.sources.folder import (
    EmptyClassWarning,
    EmptyDomainWarning,
    SkippedFilesWarning,
)
from sodap.streams.splits import read_splits, write_splits


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def write_pictures(root: Path, domain: str, count: int = 20) -> None:
    for index in range(count):
        random = np.random.default_rng([index, *domain.encode()])
        path = root / domain / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (80, 80, 3), dtype=np.uint8)).save(path)


def test_list_shows_all_data_sets_and_protocols(tmp_path: Path) -> None:
    (tmp_path / "idrid").mkdir()
    shown = call("list", "--data", tmp_path)
    assert shown.exit_code == 0
    named = [name for name in source_names() if find_source(name).classes]
    for name in (*named, *protocol_names()):
        assert f"\n{name}: " in shown.output
    assert "digits" in shown.output
    assert f"found at {tmp_path / 'idrid'}" in shown.output
    assert f"Looked in: {tmp_path}" in shown.output
    assert "images in the paper: aptos 1805/1562/295, ddr 6266/5343/913" in shown.output
    assert "s3 (never learned)" in shown.output
    assert "licence: CC BY 4.0" in shown.output


def test_an_unreadable_file_exits_with_2(tmp_path: Path) -> None:
    for domain in ("1-clinic", "2-van"):
        write_pictures(tmp_path / "mine", domain)
    broken = next((tmp_path / "mine" / "2-van").rglob("*.png"))
    broken.write_bytes(b"no image")
    shown = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert shown.exit_code == 2
    assert "cannot be learned: " in shown.output
    assert broken.name in shown.output
    page = (tmp_path / "out" / "check.html").read_text("utf-8")
    assert "These images cannot be learned as they are: " in page
    assert not (tmp_path / "out" / "skipped.csv").exists()

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "skipped.csv").write_text("a list of the user's")
    call("check", tmp_path / "mine", "--out", tmp_path / "own")
    assert (tmp_path / "own" / "skipped.csv").read_text() == "a list of the user's"
    rest = call("check", tmp_path / "mine", "--out", tmp_path / "out", "--skip-unreadable")
    assert rest.exit_code == 0, rest.output
    assert "1 unreadable file left out" in rest.output
    assert broken.name in (tmp_path / "out" / "skipped.csv").read_text("utf-8")
    assert broken.name not in (tmp_path / "out" / "splits.csv").read_text("utf-8").split("2-van")[1]


def test_an_image_too_small_to_learn_exits_with_2(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mine", "1-clinic")
    small = tmp_path / "mine/1-clinic/cat/0.png"
    Image.new("RGB", (5, 5)).save(small)
    shown = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert shown.exit_code == 2
    said = "1-clinic/cat/0.png has 5 x 5 pixels; images need at least 8 pixels per side"
    assert f"cannot be learned: {said}" in shown.output


def test_warnings_are_issued_and_on_the_page(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mine", "1-clinic")
    (tmp_path / "mine/2-mount").mkdir()
    (tmp_path / "mine/1-clinic/cat/scan.dicom").touch()
    with pytest.warns() as caught:
        shown = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert [each.category for each in caught] == [EmptyDomainWarning, SkippedFilesWarning]
    sentences = [str(each.message) for each in caught]
    *warned, _ = json.loads((tmp_path / "out/check.json").read_text())["warnings"]
    assert warned == sentences, "and that the test split is tiny"
    page = (tmp_path / "out/check.html").read_text("utf-8")
    assert "Warnings (3)" in page
    assert "&#39;2-mount&#39;" in page
    assert "1 .dicom" in page


def test_a_class_without_images_is_on_the_page(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mine", "1-clinic")
    (tmp_path / "mine/1-clinic/glaucoma").mkdir()
    with pytest.warns(EmptyClassWarning, match="'glaucoma'.* so it is not learned"):
        shown = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert "class &#39;glaucoma&#39;" in (tmp_path / "out/check.html").read_text("utf-8")


def test_a_pipe_among_the_images_is_an_obstacle(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mine", "1-clinic")
    os.mkfifo(tmp_path / "mine/1-clinic/cat/pipe.png")
    code = "from sodap.cli.main import main; main()"
    command = [sys.executable, "-c", code, "data", "check", "mine"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    said = "pipe.png cannot be read as an image: it is a pipe or a device, not a file"
    assert f"cannot be learned: 1-clinic/cat/{said}" in done.stdout


def test_file_names_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    mine, out = tmp_path / os.fsdecode(b"m\xeane"), tmp_path / "out"
    write_pictures(mine, "1-clinic")
    latin_1 = os.fsdecode(b"1-clinic/cat/M\xfcller.png")
    (mine / "1-clinic/cat/0.png").rename(mine / latin_1)
    shown = call("check", mine, "--out", out)
    assert shown.exit_code == 0, shown.output
    rows = read_splits(out / "splits.csv")
    assert latin_1 in [row.path for row in rows]
    again = call("check", mine, "--splits", out / "splits.csv", "--out", tmp_path / "again")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again/splits.csv").read_bytes() == (out / "splits.csv").read_bytes()
    assert load_stream(str(mine), 16, splits=str(out / "splits.csv")).rows == tuple(rows)

    Image.new("RGB", (9, 9)).save(mine / latin_1)
    assert call("check", mine, "--out", out).exit_code == 0
    tiny = json.loads((out / "check.json").read_text())["tiny"]
    assert [flaw["path"] for flaw in tiny] == [latin_1]
    assert r"1-clinic/cat/M\udcfcller.png is only 9 pixels" in (out / "check.html").read_text(
        "utf-8"
    )
    (mine / latin_1).write_bytes(b"no image")
    shown = call("check", mine, "--out", out)
    assert shown.exit_code == 2
    assert r"cannot be learned: 1-clinic/cat/M\udcfcller.png cannot be read" in shown.output


def test_warnings_before_an_error_are_issued(tmp_path: Path) -> None:
    (tmp_path / "mine/1-clinic/cat").mkdir(parents=True)
    (tmp_path / "mine/1-clinic/cat/scan.dicom").touch()
    with pytest.warns(SkippedFilesWarning, match=r"1 \.dicom"):
        found = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert isinstance(found.exception, SodapError)


def test_warnings_reach_the_terminal(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mine", "1-clinic")
    (tmp_path / "mine/2-mount").mkdir()
    code = "from sodap.cli.main import main; main()"
    command = [sys.executable, "-c", code, "data", "check", "mine"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.count("sodap: warning: mine has domain folders without any image") == 1


def test_the_verdict_is_green_only_with_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pictures(tmp_path, "here", count=30)
    files = sorted((tmp_path / "here").rglob("*.png"))
    rows = [(file.relative_to(tmp_path), file.parent.name, "here", file.stem) for file in files]
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "with.csv").write_text("path,label,domain,group\n" + "\n".join(lines))
    cut = [line.rpartition(",")[0] for line in lines]
    (tmp_path / "without.csv").write_text("path,label,domain\n" + "\n".join(cut))
    terminal = Console(force_terminal=True, color_system="standard", width=200)
    monkeypatch.setattr(data, "console", terminal)
    shown = call("check", tmp_path / "with.csv", "--out", tmp_path / "out")
    assert "\x1b[32mNo leakage was found.\x1b[0m" in shown.output
    shown = call("check", tmp_path / "without.csv", "--out", tmp_path / "out")
    assert "Groups (patients) were not given, so they were not checked." in shown.output
    assert "No leakage was found." not in shown.output
    assert "\x1b[32mNo leak" not in shown.output


def test_the_cache_can_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path))
    (tmp_path / f"{'0a' * 16}.images").write_bytes(b"x" * 2_000_000)
    (tmp_path / "mine.images").write_text("not ours")
    shown = call("clean")
    assert shown.exit_code == 0
    assert "2 MB deleted" in shown.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.images"]


def test_names_with_brackets_are_not_markup(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mine", "[red]1")
    write_pictures(tmp_path / "mine", "2 [")
    shown = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert "[red]1" in shown.output


def test_a_clean_folder(tmp_path: Path) -> None:
    for domain in ("1-clinic", "2-van"):
        write_pictures(tmp_path / "mine", domain)
    shown = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert (
        "No leak between splits was found by file or picture. "
        "Groups (patients) were not given, so they were not checked." in shown.output
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "check.html",
        "check.json",
        "splits.csv",
    ]
    counts = json.loads((tmp_path / "out/check.json").read_text())["counts"]
    assert counts[0] == {"domain": "1-clinic", "split": "train", "classes": {"cat": 8, "dog": 8}}

    # Saved splits are used again, with any seed.
    saved = tmp_path / "out/splits.csv"
    again = call(
        "check", tmp_path / "mine", "--splits", saved, "--seed", 5, "--out", tmp_path / "again"
    )
    assert again.exit_code == 0
    assert (tmp_path / "again/splits.csv").read_bytes() == saved.read_bytes()
    call("check", tmp_path / "mine", "--seed", 5, "--out", tmp_path / "other")
    assert (tmp_path / "other/splits.csv").read_bytes() != saved.read_bytes()


def test_tiny_test_splits_are_named_with_the_interval_to_expect(tmp_path: Path) -> None:
    for domain in ("1-clinic", "2-van"):
        write_pictures(tmp_path / "mine", domain)
    shown = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert "1-clinic (2 images)" in shown.output
    low, high = binomtest(8, 10).proportion_ci(0.95, method="exact")
    assert f"{low:.2f} to {high:.2f}" in tiny_tests([("other", 10)]), "as on the terminal"
    page = (tmp_path / "out" / "check.html").read_text("utf-8")
    assert "1-clinic (2 images)" in page


def test_a_leak_exits_with_1(tmp_path: Path) -> None:
    write_pictures(tmp_path, "images", count=6)
    files = sorted((tmp_path / "images").rglob("*.png"))
    lines = [
        f"{file.relative_to(tmp_path)},{file.parent.name},here,{split},{patient}"
        for file, split, patient in zip(
            files, ("train", "val", "test") * 2, ("x", "x", "y", "z", "z", "y"), strict=True
        )
    ]
    table = tmp_path / "mine.csv"
    table.write_text("path,label,domain,split,group\n" + "\n".join(lines))
    shown = call("check", table, "--out", tmp_path / "out")
    assert shown.exit_code == 1
    assert "leak: 2 of 2 val images of here: the same group" in shown.output
    leaks = json.loads((tmp_path / "out/check.json").read_text())["leaks"]
    assert {leak["kind"] for leak in leaks} == {"group"}


def test_a_patient_of_two_cameras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New splits keep patients together; older ones, which do not, are reported."""
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    write_pictures(tmp_path, "images", count=60)
    lines = ["path,label,domain,group"]
    for number, file in enumerate(sorted((tmp_path / "images").rglob("*.png"))):
        camera, patient = ("zeiss", "topcon")[number % 2], number // 3
        path, label = file.relative_to(tmp_path), file.parent.name
        lines.append(f"{path},{label},{camera},patient {patient}")
    table, out = tmp_path / "eyes.csv", tmp_path / "out"
    table.write_text("\n".join(lines))
    shown = call("check", table, "--out", out)
    assert shown.exit_code == 0, shown.output
    assert "No leakage was found." in shown.output

    rows = read_splits(out / "splits.csv")
    held = next(row for row in rows if row.domain == "zeiss" and row.split == "test")
    moved = [
        replace(row, split="train") if (row.domain, row.group) == ("topcon", held.group) else row
        for row in rows
    ]
    write_splits(tmp_path / "former.csv", moved)
    shown = call("check", table, "--splits", tmp_path / "former.csv", "--out", out)
    assert shown.exit_code == 1
    assert "is in train of topcon" in shown.output
    assert "There is leakage: 0 val or test images within a domain, " in shown.output
    assert "across domains (1 group)" in shown.output
    found = json.loads((out / "check.json").read_text())
    assert found["leaked_groups"] == {"within a domain": 0, "across domains": 1}
    with pytest.warns(SplitGroupWarning, match=f"1 group .*'{held.group}'.* two splits"):
        load_stream(str(table), 16, splits=str(tmp_path / "former.csv"))


def test_a_misspelt_class_exits_with_1(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mine", "1-clinic")
    write_pictures(tmp_path / "mine", "2-van")
    (tmp_path / "mine/2-van/cat").rename(tmp_path / "mine/2-van/catt")
    shown = call("check", tmp_path / "mine", "--out", tmp_path / "out")
    assert shown.exit_code == 1
    assert (
        "doubtful: the class 'catt' (10 images, only in 2-van), perhaps a typo for 'cat'"
        in shown.output
    )
    assert "--classes cat,catt,dog" in shown.output
    assert "typo for &#39;cat&#39;" in (tmp_path / "out/check.html").read_text("utf-8")
    again = call("check", tmp_path / "mine", "--classes", "cat,catt,dog", "--out", tmp_path / "out")
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "name a protocol"),
        (["check", "nowhere"], "no stream is called 'nowhere'"),
        (["check", "digits"], "no files to check"),
        (["check", "open-dr", "--data", "nowhere"], "was not found at nowhere"),
        (["check", "open-dr", "--splits", "nothing.csv"], "no file of splits"),
        (["check", "--lists", "nowhere"], "no folder of lists at nowhere"),
        (["check", ".", "--lists", "."], "lists of splits are for paper-dr"),
        (["check", "--lists", "."], "no label file at aptos_train.csv"),
        (["check", "paper-dr", "--lists", "a", "--splits", "b"], "not both"),
        (["check", "open-dr", "--groups", "one"], "groups takes separate or shared, not 'one'"),
    ],
)
def test_mistakes_are_sodap_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = call(*arguments)
    assert isinstance(found.exception, SodapError)
    assert words in str(found.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stream", [[], ["paper-dr"]])
def test_lists_without_images(tmp_path: Path, shared: Path, stream: list[str]) -> None:
    lists = shared / "paper/splits"
    shown = call(
        "check", *stream, "--lists", lists, "--data", tmp_path / "no", "--out", tmp_path / "out"
    )
    assert shown.exit_code == 1
    assert "752 of 1432 test images of drd: the same group" in shown.output
    assert "checked by lists only, without images: aptos, ddr, drd" in shown.output


@pytest.mark.slow
def test_real_lesions(tmp_path: Path, shared: Path) -> None:
    shown = call("check", "open-skin", "--data", shared / "data", "--out", tmp_path)
    assert "the complete data set has 32542" in shown.output
    report = json.loads((tmp_path / "check.json").read_text())
    assert report["unreadable"] == report["tiny"] == report["missing"] == []
    assert not [leak for leak in report["leaks"] if leak["kind"] == "group"]
    assert (tmp_path / "check.html").stat().st_size < 1_200_000


def test_the_command_line_imports_no_numpy_or_torch() -> None:
    code = "import sys, sodap.cli.data; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
