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
import typer
from rich.console import Console
from tests.reporting.records import a_record, write

from sodap.cli import ablate
from sodap.cli.bench import FORMATS, GridProgress, run_bench, show_tables
from sodap.grids import Grid, GridSummary
from sodap.grids.ablation import FULL, Ablation
from sodap.grids.ablation_table import SCORES, Row
from sodap.reporting import METRICS

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
        (["table", "nowhere"], "nowhere does not exist"),
        (
            ["table", ".", "--metric", "NONSENSE"],
            f"unknown metric 'NONSENSE'; choose from: {', '.join(METRICS)}\n",
        ),
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


@pytest.mark.parametrize(
    ("names", "tasks", "finished", "words"),
    [
        ((), 6, 0, "6 runs to do\n"),
        ((), 1, 1, "1 run to do; 1 was finished before\n"),
        ((), 0, 2, "0 runs to do; 2 were finished before\n"),
        (("run or search", "runs and searches"), 6, 0, "6 runs and searches to do\n"),
        (("run or search", "runs and searches"), 1, 0, "1 run or search to do\n"),
    ],
)
def test_what_there_is_to_do_is_called_by_its_name(
    names: tuple[str, ...], tasks: int, finished: int, words: str
) -> None:
    written = io.StringIO()
    GridProgress(Console(file=written, width=80), *names).planned(tasks, finished)
    assert written.getvalue() == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "1 run is not finished and left out\n"), (2, "2 runs are not finished and left out\n")],
)
def test_a_table_counts_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, words: str
) -> None:
    write(tmp_path / "done" / "record.json", a_record("ridge", 0, 0.9))
    for seed in range(1, count + 1):
        record = a_record("ridge", seed, 0.9, status="interrupted")
        write(tmp_path / f"s{seed}" / "record.json", record)
    show_tables(Console(file=io.StringIO(), width=80), [tmp_path], "text", None, ())
    assert capsys.readouterr().err == f"sodap: {words}"


@pytest.mark.parametrize(
    ("waiting", "words"),
    [(0, "1 failed"), (1, "1 failed, 1 run not begun"), (3, "1 failed, 3 runs not begun")],
)
def test_a_failure_is_told_at_the_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    waiting: int,
    words: str,
) -> None:
    outcome = GridSummary(failures={"digits ridge seed 0": "bad luck"}, not_started=waiting)
    monkeypatch.setattr(Grid, "run", lambda *_: outcome)
    with pytest.raises(typer.Exit) as end:
        run_bench(
            Console(file=io.StringIO()),
            "table1",
            [],
            streams=None,
            methods="ridge",
            seeds=1,
            out=tmp_path,
            jobs=1,
            search=True,
        )
    assert end.value.exit_code == 1
    told = ["failed: digits ridge seed 0: bad luck", f"{words}; the same command tries again"]
    assert capsys.readouterr().err == "".join(f"sodap: {line}\n" for line in told)


def test_a_table_says_whom_it_compares_with(tmp_path: Path) -> None:
    told = " ".join(call("table", "--help", cwd=tmp_path).stdout.replace("│", " ").split())
    assert "default: residual-sodap, or the best without it." in told


def test_a_table_warns_of_a_row_of_two_settings(tmp_path: Path) -> None:
    for seed in range(2):
        record = a_record("ridge", seed, 0.9, edits={"config.training.epochs": seed + 1})
        write(tmp_path / f"s{seed}" / "record.json", record)
    found = call("table", ".", cwd=tmp_path)
    assert found.returncode == 0
    words = "sodap: warning: the runs of ridge on weather differ in training.epochs\n"
    assert found.stderr == words


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_warns_of_unequal_terms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Once in every format, with the conclusion if there is one."""
    for method, epochs in (("anchored", 8), ("sequential", 1)):
        record = a_record(method, 0, 0.9, edits={"config.training.epochs": epochs})
        write(tmp_path / method / "record.json", record)
    shown = io.StringIO()
    show_tables(Console(file=shown, width=500), [tmp_path], form, None, ())
    out, err = capsys.readouterr()
    words = "training.epochs is 8 for `anchored` and 1 for `sequential`"
    told = (shown.getvalue() + out + err).replace("`", "")
    assert told.count(words.replace("`", "")) == 1
    if form in ("csv", "latex"):
        assert err.startswith("sodap: weather, micro at 32 pixels: Warning: ")
    else:
        assert err == ""


def test_stars_of_an_ablation_are_said_to_be_uncorrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ablation, "run", lambda *_: GridSummary())
    monkeypatch.setattr(ablate, "write_table", lambda *_: [])
    seeds = {score: {0: 0.5} for score in SCORES}
    monkeypatch.setattr(ablate, "table_of", lambda _: [Row(FULL, {}, seeds, seeds)])
    shown = io.StringIO()
    ablate.run_ablation(
        Console(file=shown, width=200),
        "demo",
        [],
        seeds=1,
        only=None,
        extra=False,
        out=tmp_path,
        jobs=1,
    )
    assert "each for itself: not corrected for the number of comparisons." in shown.getvalue()


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
    assert "1 failed; the same command tries again" in errors
    assert "digits-mini ridge seed 0: AvgACC" in output
    assert status(home / "ridge" / "s0") == "finished"

    again = call(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "1 run to do; 1 was finished before" in again.stdout
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
