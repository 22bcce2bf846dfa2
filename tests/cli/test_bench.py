"""`sodap bench` and `sodap table`: output, and real workers that are killed and interrupted."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import typer
from rich.console import Console
from tests.cli.conftest import Call, start
from tests.conftest import TINY
from tests.reporting.records import a_record, write

from sodap.cli.grids import GridProgress, report_failures
from sodap.cli.table import FORMATS, show_tables
from sodap.grids import Grid, GridSummary, run_grid
from sodap.grids.recipe import read_grid
from sodap.grids.search import as_changes
from sodap.runs.reading import read_record


@pytest.mark.parametrize(
    ("names", "tasks", "finished", "words"),
    [
        ((), 6, 0, "6 runs to do\n"),
        ((), 1, 1, "1 run to do; 1 finished before\n"),
        (("run or search", "runs and searches"), 6, 0, "6 runs and searches to do\n"),
        (("run or search", "runs and searches"), 1, 0, "1 run or search to do\n"),
    ],
)
def test_the_number_of_tasks_is_printed(
    names: tuple[str, ...], tasks: int, finished: int, words: str
) -> None:
    printed = io.StringIO()
    GridProgress(Console(file=printed, width=80), *names).planned(tasks, finished)
    assert printed.getvalue() == words


@pytest.mark.parametrize(
    ("not_started", "words"), [(0, "1 failed;"), (1, "1 failed, 1 run not started;")]
)
def test_failures_are_printed_at_the_end(
    capsys: pytest.CaptureFixture[str], not_started: int, words: str
) -> None:
    summary = GridSummary(failures={"digits ridge seed 0": "bad luck"}, not_started=not_started)
    with pytest.raises(typer.Exit) as end:
        report_failures(summary)
    assert end.value.exit_code == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "sodap: failed: digits ridge seed 0: bad luck"
    assert words in lines[1]
    report_failures(GridSummary(done=1))


# ---------------------------------------------------------------------- tables


def test_a_table_counts_unfinished_runs(tmp_path: Path, sodap: Call) -> None:
    write(tmp_path / "done" / "record.json", a_record("ridge", 0, 0.9))
    for seed in (1, 2):
        record = a_record("ridge", seed, 0.9, status="interrupted")
        write(tmp_path / f"s{seed}" / "record.json", record)
    found = sodap("table", ".")
    assert found.code == 0
    assert found.err == "sodap: left out 2 unfinished runs\n"
    assert "ridge" in found.out


def test_a_table_warns_of_runs_of_one_method_with_different_settings(
    tmp_path: Path, sodap: Call
) -> None:
    for seed in range(2):
        record = a_record("ridge", seed, 0.9, edits={"config.training.epochs": seed + 1})
        write(tmp_path / f"s{seed}" / "record.json", record)
    found = sodap("table", ".")
    assert found.code == 0
    words = "sodap: warning: the runs of ridge on weather differ in training.epochs\n"
    assert found.err == words


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_warns_once_of_methods_with_different_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    for method, epochs in (("anchored", 8), ("sequential", 1)):
        record = a_record(method, 0, 0.9, edits={"config.training.epochs": epochs})
        write(tmp_path / method / "record.json", record)
    shown = io.StringIO()
    show_tables(Console(file=shown, width=500), [tmp_path], form, None, ())
    out, err = capsys.readouterr()
    words = "training.epochs is 8 for anchored and 1 for sequential"
    assert (shown.getvalue() + out + err).replace("`", "").count(words) == 1
    assert (words in err.replace("`", "")) == (form in ("csv", "latex"))


# ---------------------------------------------------------------------- real workers

CHANGES = [*TINY, "epochs=500", "patience=500", "batch_size=8"]


def bench(folder: Path, methods: str) -> subprocess.Popen[str]:
    command = ["bench", "table1", "--streams", "digits-mini", "--out", "grid", "--no-search"]
    return start(*command, "--methods", methods, "--seeds", "1", *CHANGES, cwd=folder)


def worker_of(process: subprocess.Popen[str], log: Path) -> int:
    """The process that learns, once it has learned an epoch."""
    while not log.exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    (worker,) = [pid for pid, line in lines.items() if b"spawn_main" in line]
    return worker


@pytest.mark.slow
def test_a_killed_worker_costs_only_its_run(tmp_path: Path) -> None:
    process = bench(tmp_path, "sequential,ridge")
    home = tmp_path / "grid" / "digits-mini"
    os.kill(worker_of(process, home / "sequential" / "s0" / "log.jsonl"), signal.SIGKILL)
    output, errors = process.communicate()
    assert process.returncode == 1, errors
    assert "failed: digits-mini sequential seed 0: the worker died (SIGKILL" in errors
    assert "1 failed; try again with the same command" in errors
    assert "digits-mini ridge seed 0: final " in output
    ridge = read_record(home / "ridge" / "s0" / "record.json")
    assert ridge.status == "finished"
    assert ridge.jobs == 1
    again = [*as_changes(read_grid("table1").settings), *CHANGES]
    grid = Grid(["digits-mini"], ["ridge"], [0], tmp_path / "grid", again, jobs=0, search=False)
    assert run_grid(grid).finished == 1


@pytest.mark.slow
@pytest.mark.parametrize("group", [True, False], ids=["all processes", "parent alone"])
def test_interrupted_by_the_user(tmp_path: Path, group: bool) -> None:
    """Ctrl-C in a terminal reaches all processes, `kill -INT` only one."""
    process = bench(tmp_path, "sequential")
    folder = tmp_path / "grid" / "digits-mini" / "sequential" / "s0"
    worker = worker_of(process, folder / "log.jsonl")
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == "sodap: interrupted; continue with the same command\n"
    assert read_record(folder / "record.json").status == "interrupted"
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
