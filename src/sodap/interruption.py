"""Handling of SIGTERM, which batch systems and containers send to end a process."""

from __future__ import annotations

import signal
from types import FrameType


def interrupt_on_sigterm() -> None:
    """Treat SIGTERM like Ctrl-C, so that state is saved."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: int | FrameType | None) -> None:
    # Only once: a second signal must not disturb the saving that the first one causes.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
