from __future__ import annotations

import threading
from typing import Any

import pytest

from sodap.errors import SodapError
from sodap.runs import writer
from sodap.runs.writer import Writer


def waited(let_go: threading.Event) -> None:
    assert let_go.wait(30)


def fail() -> None:
    raise SodapError("the disk is full")


def test_files_are_written_in_their_order_while_the_run_goes_on() -> None:
    let_go, seen, files = threading.Event(), [], Writer()
    files.write(lambda: seen.append(let_go.wait(30)))
    for number in range(5):
        files.write(lambda number=number: seen.append(number))  # type: ignore[misc]
    assert seen == []
    let_go.set()
    files.wait()
    assert seen == [True, 0, 1, 2, 3, 4]


def test_a_slow_disk_holds_the_run_up_before_memory_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "AT_ONCE", 3)
    let_go, files, handed_over = threading.Event(), Writer(), []

    def run() -> None:
        for number in range(5):
            files.write(lambda: waited(let_go))
            handed_over.append(number)

    running = threading.Thread(target=run)
    running.start()
    running.join(0.2)
    assert running.is_alive()
    assert len(handed_over) == 3
    let_go.set()
    running.join(30)
    assert len(handed_over) == 5


def test_what_goes_wrong_is_said_once() -> None:
    let_go, files, seen = threading.Event(), Writer(), []
    files.write(lambda: waited(let_go))
    files.write(fail)
    files.check()  # nothing has gone wrong yet
    let_go.set()
    with pytest.raises(SodapError, match="disk is full"):
        files.wait()
    files.write(lambda: seen.append("later"))
    files.wait()
    assert seen == ["later"]
    assert files.write(fail).exception(30)
    files.write(lambda: seen.append("and the last word"))
    with pytest.raises(SodapError, match="disk is full"):
        files.check()
    files.wait()
    assert seen == ["later", "and the last word"]


def test_an_interrupted_wait_can_be_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, files = threading.Event(), Writer()
    written = files.write(lambda: waited(let_go))
    with monkeypatch.context() as for_now:
        for_now.setattr(writer, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.wait()
    assert not written.done()
    let_go.set()
    files.wait()
    assert written.done()


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_nobody_writes_any_more_once_all_has_settled() -> None:
    let_go, files = threading.Event(), Writer()
    files.write(lambda: waited(let_go))
    files.write(fail)
    last = files.write(lambda: waited(let_go))
    threading.Timer(0.1, let_go.set).start()
    files.settle()
    assert last.done()
    files.wait()
