"""The settings that `sodap run` takes as KEY=VALUE, below its help."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand


class KeysCommand(TyperCommand):
    """A command whose help ends with the list of keys."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        show_keys(Console())


def show_keys(console: Console) -> None:
    """Print every key of a run and its training: default, bounds and meaning."""
    from sodap.methods import options_of  # waits here, so that other help is fast
    from sodap.runs.config import RunConfig

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("key", no_wrap=True, style="bold")
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for option in options_of(RunConfig):
        if option.name == "options":  # those of a method are keys themselves
            continue
        meaning = f"{escape(option.meaning)} [dim]({escape(option.bounds)})[/]"
        table.add_row(option.name.removeprefix("training."), escape(option.default), meaning)
    console.print("[bold]Keys[/] of KEY=VALUE; a recipe may have other defaults:\n")
    console.print(table, highlight=False)
    console.print(
        "\nThe options of a method are keys, too; `sodap methods NAME` lists them. "
        "Example: sodap run default stream=FOLDER backbone=deit_tiny lr=3e-4 seed=1\n",
        highlight=False,
    )
