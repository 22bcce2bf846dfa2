"""To be asked to end is to be interrupted: what is under way is written down first."""

from __future__ import annotations

import signal
from types import FrameType


def heed_sigterm() -> None:
    """From now on SIGTERM, by which batch systems and containers end a process, is a Ctrl-C."""
    signal.signal(signal.SIGTERM, _stop)


def _stop(*_: int | FrameType | None) -> None:
    """Once: a second request must not disturb the writing that the first one brought about."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
