"""What may be said of a drift score that a record holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def too_few(drift: Mapping[str, Any]) -> str | None:
    """Why a score near 0 need not mean that a domain is like the one before; None if it does.

    With few past batches the entropy does not count, and large pools share most of their usage.
    """
    past, needed = drift.get("past_batches"), drift.get("needed_batches")
    if past is None or needed is None or past >= needed:
        return None
    return f"{past} of {needed} batches to compare with"
