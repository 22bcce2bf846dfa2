"""Real processes, one of which is really killed."""

from __future__ import annotations

import os
import signal
from collections import deque

import pytest

from sodap.errors import FolderBusyError
from sodap.grids.workers import TaskResult, run_tasks


class ForeignError(FolderBusyError):
    """An error of another package, which the parent process need not know."""


def work(task: str) -> tuple[int, str]:
    match task:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            raise ValueError("no luck")
        case "refuse":
            raise ForeignError("give another file")
    return os.getpid(), task


@pytest.mark.slow
def test_a_killed_worker_costs_only_its_task() -> None:
    tasks = deque(["one", "die", "fail", "refuse", "two"])
    reports: dict[str, TaskResult[str, tuple[int, str]]] = {}
    for report in run_tasks(tasks, work, jobs=1):
        reports[report.task] = report
        if report.task == "two":
            tasks.append("late")
    assert list(reports) == ["one", "die", "fail", "refuse", "two", "late"]
    assert "died (SIGKILL" in str(reports["die"].error)
    assert str(reports["fail"].error) == "ValueError: no luck"
    assert "in work" in reports["fail"].traceback
    refusal = reports["refuse"]
    assert type(refusal.error) is FolderBusyError
    assert (str(refusal.error), refusal.traceback) == ("give another file", "")
    processes = {task: report.value[0] for task, report in reports.items() if report.value}
    assert list(processes) == ["one", "two", "late"]
    assert processes["one"] != processes["two"]
    assert processes["two"] == processes["late"], "a worker does many tasks"
    for process in processes.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
