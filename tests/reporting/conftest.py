"""Runs and pages that several test modules share, and a real browser."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sodap.reporting import LoadedRun, load_runs, with_composition, write_report
from sodap.reporting.loading import load_run
from sodap.runs import RunCallback, load_config, run
from sodap.streams import Stage
from tests.conftest import TINY, make_stream

from .browser import Browser

QUICK = [*TINY, "epochs=2", "patience=2", "batch_size=16"]
RUNS = {
    "sodap-0": ("default", [*QUICK, "seed=0"]),
    "plain-0": ("sequential", [*QUICK, "seed=0"]),
    "plain-1": ("sequential", [*QUICK, "seed=1"]),
    "ridge-1": ("ridge", [*TINY, "seed=1"]),
}


class StopError(Exception):
    pass


class Stopper(RunCallback):
    """Raises an error after some epochs."""

    def __init__(self, epochs: int, error: type[BaseException]) -> None:
        self.left, self.error = epochs, error

    def epoch_done(self, stage: Stage, row: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error("the plug was pulled")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of three methods on three domains, and two that were broken off."""
    home = tmp_path_factory.mktemp("runs")
    stream = make_stream(3, 3)
    for name, (recipe, changes) in RUNS.items():
        command = ["/opt/bin/sodap", "run", recipe, "data=my dir"]
        run(load_config(recipe, changes), home / name, stream=stream, command=command)
    config = load_config("default", [*QUICK, "seed=5"])
    with pytest.raises(StopError):
        run(config, home / "failed", stream=stream, callback=Stopper(3, StopError))
    with pytest.raises(KeyboardInterrupt):
        run(config, home / "stopped", stream=stream, callback=Stopper(1, KeyboardInterrupt))
    return home


@pytest.fixture(scope="session")
def full(home: Path) -> LoadedRun:
    """The run of Residual SODAP with its images and its cross-composition."""
    found = replace(load_run(home / "sodap-0"), stream=make_stream(3, 3), no_stream="")
    return with_composition(found)


@pytest.fixture(scope="session")
def report(full: LoadedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `full`."""
    return write_report([full], tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def several(home: Path) -> list[LoadedRun]:
    """Four finished runs and one that failed."""
    names = ("sodap-0", "plain-0", "plain-1", "failed", "ridge-1")
    return load_runs([home / name for name in names])


@pytest.fixture(scope="session")
def comparison(several: list[LoadedRun], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `several`."""
    return write_report(several, tmp_path_factory.mktemp("comparison"))


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = shutil.which("chromium")
    if program is None:
        if "CI" in os.environ:
            pytest.fail("this test needs the program 'chromium'")
        pytest.skip("this test needs the program 'chromium'")
    return Browser(program, tmp_path)
