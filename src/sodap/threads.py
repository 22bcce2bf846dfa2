"""Settings of the OpenMP threads that torch computes with on a CPU.

OpenMP reads them when it is loaded, so they must be set before torch is imported. By default a
waiting thread of GNU OpenMP spins for about ten milliseconds. On a machine with other work it so
takes a core from the very thread that it waits for: a training step on two busy cores took four
times as long as with threads that sleep. On an idle machine a short spin is as fast as a long one,
and faster than to sleep at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

SHORT_SPIN = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
"""Spin for less than a millisecond, then sleep (GNU and LLVM OpenMP)."""
SLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Sleep at once."""

_SAMPLES, _PAUSE_S = 5, 0.002
"""How often, and at which interval, running processes are counted."""


def configure_threads() -> None:
    """Set the number and the waiting of OpenMP threads in this process and its children.

    Variables that the user has set are kept. The number of threads depends on the CPUs that the
    process may use and not on the load, because it may change the order of sums.
    """
    cpus = available_cpus()
    if cpus < len(os.sched_getaffinity(0)):
        os.environ.setdefault("OMP_NUM_THREADS", str(cpus))
    os.environ |= waiting(os.environ, other_running_processes(), os.cpu_count() or 1)


def waiting(environment: Mapping[str, str], others: int, cpus: int) -> dict[str, str]:
    """Variables to set where `others` processes are running on a machine with `cpus` CPUs."""
    if any(name in environment for name in (*SLEEP, *SHORT_SPIN)):
        return {}
    return SLEEP if 2 * others >= cpus else SHORT_SPIN


def available_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that the process may use, by its affinity and by the quota of its container."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or "max"
        return allowed


def other_running_processes(loadavg: Path = Path("/proc/loadavg")) -> int:
    """Threads of other processes that are running or ready to run, as counted by the kernel."""
    counts = []
    for _ in range(_SAMPLES):
        try:
            counts.append(int(loadavg.read_text().split()[3].partition("/")[0]) - 1)
        except (OSError, ValueError, IndexError):
            return 0
        time.sleep(_PAUSE_S)
    return max(0, min(counts))
