"""The command as a user meets it: real processes, real files, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import sodap
from sodap.runs import load_config
from sodap.storage import write_json

SODAP = Path(sys.executable).parent / "sodap"


def call(*arguments: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SODAP), *arguments], cwd=cwd, capture_output=True, text=True, timeout=timeout
    )


def test_version_and_help(tmp_path: Path) -> None:
    assert call("--version", cwd=tmp_path).stdout == f"sodap {sodap.__version__}\n"
    shown = call("--help", cwd=tmp_path)
    assert shown.returncode == 0
    as_module = [sys.executable, "-m", "sodap", "--help"]
    assert subprocess.check_output(as_module, cwd=tmp_path, text=True) == shown.stdout
    for command in ("run", "demo", "recipes"):
        assert command in shown.stdout


def test_recipes_are_listed(tmp_path: Path) -> None:
    shown = call("recipes", cwd=tmp_path).stdout
    assert "default" in shown
    assert "paper" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nothing"], "no recipe is called 'nothing'"),
        (["run", "l2p", "stream=digits-mini"], "`sodap run default method=l2p`"),
        (["run", "default", "colour=blue"], "'colour' is no key"),
        (["run", "default", "stream=nowhere"], "no stream is called 'nowhere'"),
        (["run", "default", "backbone=deit_tiny", "weights=x.pth"], "no weights file at x.pth"),
        (["run", "default", "--out", "full/run"], "cannot write"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "full").write_text("a file where a folder should be")
    found = call(*arguments, cwd=tmp_path)
    assert found.returncode == 2
    assert words in found.stderr
    assert found.stderr.startswith("sodap: ")
    assert found.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_an_unreadable_image_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "one" / "cat"
    folder.mkdir(parents=True)
    for index in range(10):
        (folder / f"{index}.png").write_bytes(b"not an image")
    found = call("run", "default", "stream=mine", cwd=tmp_path)
    assert found.returncode == 2
    assert "cannot be read as an image" in found.stderr
    assert not (tmp_path / "runs").exists()


RUN = ["run", "default", "stream=digits-mini", "epochs=4", "patience=4", "batch_size=4"]


def matrices(folder: Path) -> Any:
    return json.loads((folder / "record.json").read_text())["confusions"]


@pytest.mark.slow
def test_killed_in_the_middle_of_an_epoch_and_resumed(tmp_path: Path) -> None:
    whole = call(*RUN, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert "AvgACC" in whole.stdout

    log = tmp_path / "killed" / "log.jsonl"
    process = subprocess.Popen(
        [str(SODAP), *RUN, "--out", "killed"], cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 240
    while not (log.exists() and '"stage":2,' in log.read_text()):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.15)  # into the next epoch
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert json.loads((tmp_path / "killed" / "record.json").read_text())["status"] == "running"

    refused = call(*RUN, "--out", "killed", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    resumed = call(*RUN, "--out", "killed", "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert matrices(tmp_path / "killed") == matrices(tmp_path / "whole")
    kept = sorted((tmp_path / "whole" / "steps").glob("*.safetensors"))
    assert len(kept) == 4
    for steps in kept:  # of every step, none lost and none twice
        assert steps.read_bytes() == (tmp_path / "killed" / "steps" / steps.name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_by_the_user(how: signal.Signals, tmp_path: Path) -> None:
    """Or by a batch system or a container, which send SIGTERM."""
    process = subprocess.Popen(
        [str(SODAP), *RUN],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that started the tests in the background has told its children to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    folder = tmp_path / "runs" / "digits-mini-residual-sodap-s0"
    deadline = time.monotonic() + 240
    while not (folder / "log.jsonl").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    assert json.loads((folder / "record.json").read_text())["status"] == "interrupted"


def test_what_resume_finds(tmp_path: Path) -> None:
    """One sentence, and not two that contradict each other."""
    finished = tmp_path / "finished"
    write_json(finished / "config.json", load_config("default", ["epochs=9"]).described())
    write_json(finished / "record.json", {"status": "finished"})
    other = call("run", "default", "--out", "finished", "--resume", cwd=tmp_path)
    assert other.returncode == 2
    assert "finished holds a run with another training.epochs" in other.stderr
    assert other.stdout == ""
    unknown = call("run", "default", "backbone=vit_huge_", "--out", "finished", cwd=tmp_path)
    assert "no backbone is called 'vit_huge_'" in unknown.stderr
    none = call("run", "default", "stream=nowhere", "--out", "none", "--resume", cwd=tmp_path)
    assert none.returncode == 2
    assert "there is no run in none to go on with; it begins now" in none.stdout
    assert "nowhere" in none.stderr
