"""A sign of life while slow packages are imported."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from rich.console import Console


def loading(console: Console) -> AbstractContextManager[object]:
    """On a terminal, say what is loaded until the block ends: torch alone takes seconds."""
    if not console.is_terminal:
        return nullcontext()
    return console.status("loading PyTorch ...")
