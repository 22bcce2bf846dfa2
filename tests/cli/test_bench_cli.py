"""`sodap bench` and `sodap table` as a user meets them: real workers, kills and Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.reporting.made_runs import a_record, write

from sodap.cli.bench import GridProgress

SODAP = Path(sys.executable).parent / "sodap"

GRID = ["bench", "table1", "--streams", "digits-mini", "--out", "grid"]


def call(*arguments: str, cwd: Path, timeout: float = 500) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SODAP), *arguments], cwd=cwd, capture_output=True, text=True, timeout=timeout
    )


def begin(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(SODAP), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, as under a terminal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Its children that do the work, by their command lines."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return [pid for pid, line in lines.items() if b"spawn_main" in line]


def status(folder: Path) -> Any:
    return json.loads((folder / "record.json").read_text())["status"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "table7"], "no grid is called 'table7'"),
        (["bench", "table1", "--methods", "magic"], "no method is called 'magic'"),
        (["bench", "table1", "seed=3"], "give --seeds instead"),
        (["table", "nowhere"], "there is nothing at nowhere"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    found = call(*arguments, cwd=tmp_path)
    assert found.returncode == 2
    assert words in found.stderr
    assert found.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_there_is_to_do_is_called_by_its_name() -> None:
    for tasks in ("runs", "runs and searches"):
        console = Console(file=io.StringIO(), width=80)
        GridProgress(console, tasks).planned(6, 0)
        assert console.file.getvalue() == f"6 {tasks} to do\n"  # type: ignore[attr-defined]


def test_a_table_says_whom_it_compares_with(tmp_path: Path) -> None:
    told = " ".join(call("table", "--help", cwd=tmp_path).stdout.replace("│", " ").split())
    assert "default: residual-sodap, or the best without it." in told


def test_a_table_warns_of_a_row_of_two_settings(tmp_path: Path) -> None:
    for seed in range(2):
        record = a_record("ridge", seed, 0.9)
        record["config"]["training"] = {"epochs": seed}
        write(tmp_path / f"s{seed}" / "record.json", record)
    found = call("table", ".", cwd=tmp_path)
    assert found.returncode == 0
    words = "sodap: warning: the runs of ridge on weather differ in training.epochs\n"
    assert found.stderr == words


@pytest.mark.slow
def test_a_killed_worker_costs_its_run_and_the_next_time_all_is_done(tmp_path: Path) -> None:
    command = [*GRID, "--methods", "sequential,ridge", "--seeds", "1", "--no-search"]
    command += ["epochs=12", "patience=12", "batch_size=8", "device=cpu"]
    process = begin(*command, cwd=tmp_path)
    home = tmp_path / "grid" / "digits-mini"
    wait_for(home / "sequential" / "s0" / "log.jsonl", process)
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 1, errors
    assert "failed: digits-mini sequential seed 0: the worker died (SIGKILL" in errors
    assert "1 failed; the same command tries them again" in errors
    assert "digits-mini ridge seed 0: AvgACC" in output
    assert status(home / "ridge" / "s0") == "finished"

    again = call(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "1 runs to do; 1 were finished before" in again.stdout
    assert status(home / "sequential" / "s0") == "finished"
    shown = call("table", "grid", "--format", "csv", "--metric", "AvgACC", cwd=tmp_path)
    methods = [line.split(",")[2] for line in shown.stdout.splitlines()]
    assert sorted(methods) == ["constant", "method", "ridge", "sequential"]


@pytest.mark.slow
@pytest.mark.parametrize("everyone", [True, False], ids=["terminal", "parent alone"])
def test_interrupted_by_the_user(tmp_path: Path, everyone: bool) -> None:
    command = [*GRID, "--methods", "sequential", "--seeds", "2", "--no-search"]
    command += ["epochs=500", "patience=500", "batch_size=8", "device=cpu"]
    process = begin(*command, cwd=tmp_path)
    folder = tmp_path / "grid" / "digits-mini" / "sequential" / "s0"
    wait_for(folder / "log.jsonl", process)
    (worker,) = workers_of(process)
    if everyone:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "sodap: interrupted; the same command goes on where it stopped\n"
    assert status(folder) == "interrupted"
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
