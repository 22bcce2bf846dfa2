from __future__ import annotations

import threading
from concurrent.futures import wait as wait_for
from typing import Any

import pytest

from sodap.errors import SodapError
from sodap.runs import writer as writer_module
from sodap.runs.writer import MAX_PENDING, Writer


def waited(event: threading.Event) -> None:
    assert event.wait(60)


def fail() -> None:
    raise SodapError("the disk is full")


def test_jobs_run_in_order_while_the_run_goes_on() -> None:
    later, seen, writer = threading.Event(), [], Writer()
    writer.write(lambda: waited(later), lambda: seen.append("first"))
    for number in range(5):
        writer.write(lambda number=number: seen.append(number))  # type: ignore[misc]
    assert seen == []
    later.set()
    writer.wait()
    assert seen == ["first", 0, 1, 2, 3, 4]


def test_a_slow_disk_stops_the_run_before_memory_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many jobs as may wait, the next one waits for the first."""
    later, writer, waits = threading.Event(), Writer(), []

    def wait(jobs: Any) -> Any:
        waits.append([job.done() for job in jobs])
        later.set()
        return wait_for(jobs)

    monkeypatch.setattr(writer_module, "wait_for", wait)
    for _ in range(MAX_PENDING):
        writer.write(lambda: waited(later))
    assert waits == []
    last = writer.write(lambda: waited(later))
    assert waits == [[False]]
    writer.wait()
    assert last.done()


def test_an_error_is_raised_once() -> None:
    later, writer, seen = threading.Event(), Writer(), []
    writer.write(lambda: waited(later))
    writer.write(fail)
    writer.check()  # nothing has failed yet
    later.set()
    with pytest.raises(SodapError, match="disk is full"):
        writer.wait()
    writer.write(lambda: seen.append("later"))
    writer.wait()
    assert seen == ["later"]
    assert writer.write(fail, lambda: seen.append("never")).exception(60)
    writer.write(lambda: seen.append("last"))
    with pytest.raises(SodapError, match="disk is full"):
        writer.check()
    writer.wait()
    assert seen == ["later", "last"]


def test_an_interrupted_wait_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    later, writer = threading.Event(), Writer()
    job = writer.write(lambda: waited(later))
    with monkeypatch.context() as impatient:
        impatient.setattr(writer_module, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
    assert not job.done()
    later.set()
    writer.wait()
    assert job.done()


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_settling_waits_and_ignores_errors() -> None:
    writer, seen = Writer(), []
    writer.write(fail)
    last = writer.write(lambda: seen.append("last"))
    writer.settle()
    assert last.done()
    assert seen == ["last"]
    writer.wait()
