"""The command line in this process, and in a process of its own where that is what is tested."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sodap.cli import main

SODAP = Path(sys.executable).parent / "sodap"


@dataclass(frozen=True)
class Called:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


Call = Callable[..., Called]


@pytest.fixture
def sodap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """Call `sodap ARGUMENTS...` in an empty folder, in this process."""
    environment, sigterm = dict(os.environ), signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def call(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["/usr/bin/sodap", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return Called(int(end.value.code or 0), printed.out, printed.err)

    yield call
    signal.signal(signal.SIGTERM, sigterm)
    os.environ.clear()
    os.environ.update(environment)


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Start `sodap ARGUMENTS...` as a process, in a process group as under a terminal."""
    return subprocess.Popen(
        [str(SODAP), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that started the tests in the background has told its children to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Read the output of a process up to a line with these words."""
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"it ended without '{words}': {process.stderr.read()}")
