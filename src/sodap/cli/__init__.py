"""The command `sodap`."""

from sodap.cli.main import main

__all__ = ["main"]
