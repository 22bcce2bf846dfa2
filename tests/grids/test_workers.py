"""Real processes, one of which is really killed."""

from __future__ import annotations

import os
import signal
from collections import deque

import pytest

from sodap.errors import FolderBusyError
from sodap.grids.workers import TaskResult, work_off


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
def test_a_worker_that_dies_costs_its_task_only() -> None:
    tasks = deque(["one", "die", "fail", "refuse", "two"])
    reports: dict[str, TaskResult[str]] = {}
    for report in work_off(tasks, work, jobs=1):
        reports[report.task] = report
        if report.task == "two":
            tasks.append("late")
    assert list(reports) == ["one", "die", "fail", "refuse", "two", "late"]
    assert "died (SIGKILL" in str(reports["die"].error)
    assert str(reports["fail"].error) == "ValueError: no luck"
    assert "in work" in reports["fail"].trace
    refusal = reports["refuse"]
    assert type(refusal.error) is FolderBusyError
    assert (str(refusal.error), refusal.trace) == ("give another file", "")
    first, second = reports["one"].result[0], reports["two"].result[0]
    assert reports["late"].result == (second, "late"), "a worker does many tasks"
    assert first != second
    for process in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
