"""Whether the process of a run still exists, for those who watch it on the same machine.

Linux knows it from `/proc`. Without it, only the files of a run can tell.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from sodap.runs.record import ProcessInfo

PROC = Path("/proc")


def this_process() -> ProcessInfo | None:
    """The process that calls; None if the system cannot tell."""
    machine, started = _machine(), _started(os.getpid())
    if machine is None or started is None:
        return None
    return ProcessInfo(machine=machine, pid=os.getpid(), started=started)


def is_gone(process: ProcessInfo | None) -> bool:
    """Whether a process is known to have ended; False for one on another machine."""
    if process is None or process.machine != _machine():
        return False
    return _started(process.pid) != process.started


def _machine() -> str | None:
    """A digest of the boot and of the process namespace, since a container numbers its own."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text()
        namespace = (PROC / "self/ns/pid").readlink()
    except OSError:
        return None
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]


def _started(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None if there is none, or only its remains."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # after the name, which may contain anything
    return None if fields[0] in "ZX" else int(fields[19])
