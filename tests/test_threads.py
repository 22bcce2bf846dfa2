from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sodap.threads import (
    SHORT_SPIN,
    SLEEP,
    available_cpus,
    configure_threads,
    other_running_processes,
    waiting,
)


@pytest.mark.parametrize(
    ("others", "cpus", "expected"),
    [(0, 2, SHORT_SPIN), (1, 2, SLEEP), (7, 16, SHORT_SPIN), (8, 16, SLEEP), (1, 1, SLEEP)],
)
def test_threads_sleep_on_a_busy_machine(others: int, cpus: int, expected: dict[str, str]) -> None:
    assert waiting({}, others, cpus) == expected


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_has_set_is_kept(name: str) -> None:
    assert waiting({name: "7"}, 5, 2) == {}


def test_running_processes_are_counted_without_this_one(tmp_path: Path) -> None:
    loadavg = tmp_path / "loadavg"
    loadavg.write_text("0.58 0.60 0.66 4/812 1234\n")
    assert other_running_processes(loadavg) == 3
    loadavg.write_text("?")
    assert other_running_processes(loadavg) == 0
    assert other_running_processes(tmp_path / "none") == 0


def test_a_container_may_have_fewer_cpus_than_its_machine(tmp_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    assert available_cpus(tmp_path) == allowed
    for quota, expected in (("max", allowed), ("100000", 1), ("50000", 1), ("99900000", allowed)):
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        assert available_cpus(tmp_path) == expected


def test_openmp_reads_the_settings() -> None:
    """The settings must be in place before torch loads OpenMP, which then shows what it read."""
    code = "from sodap.threads import configure_threads; configure_threads(); import torch"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"OMP_DISPLAY_ENV": "VERBOSE"},
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch uses another OpenMP than GNU's")
    assert "GOMP_SPINCOUNT = '10000'" in done.stderr or "GOMP_SPINCOUNT = '0'" in done.stderr


def test_children_get_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SLEEP, *SHORT_SPIN):
        monkeypatch.delenv(name, raising=False)
    configure_threads()
    found = {name: os.environ[name] for name in (*SLEEP, *SHORT_SPIN) if name in os.environ}
    assert found in (SLEEP, SHORT_SPIN)
    for name in found:
        monkeypatch.delenv(name)
