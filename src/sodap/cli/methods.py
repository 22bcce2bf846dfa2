"""`sodap methods`: list the methods, or the options of one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:  # imports torch
    from sodap.methods import Method


def list_methods(console: Console) -> None:
    """Print one row per method: what it is, trains and stores."""
    from sodap.methods import find_method, method_names

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True, style="bold")
    table.add_column("family", no_wrap=True)
    table.add_column("what it is")
    for name in method_names():
        method = find_method(name)
        habits = f"trains {method.trains}; stores {method.stores}"
        table.add_row(
            escape(name),
            escape(method.family),
            f"{escape(summary(method))}\n[dim]{escape(habits)}[/]",
        )
    console.print(table, highlight=False)
    console.print(
        "\nOptions of a method: sodap methods NAME. Run it: sodap run default method=NAME",
        highlight=False,
    )


def show_method(console: Console, name: str) -> None:
    """Print all options of a method."""
    from sodap.methods import find_method, options_of

    method = find_method(name)
    console.print(f"[bold]{escape(name)}[/] ({escape(method.family)})", highlight=False)
    console.print(escape(summary(method)), highlight=False)
    console.print(f"Trains: {escape(method.trains)}", highlight=False)
    console.print(f"Stores: {escape(method.stores)}", highlight=False)
    options = list(options_of(method.Config))
    if not options:
        console.print("This method has no options.", highlight=False)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("\noption", no_wrap=True, style="bold")
    table.add_column("\ndefault", overflow="fold")
    table.add_column("\nmeaning")
    for option in options:
        meaning = f"{escape(option.meaning)} [dim]({escape(option.bounds)})[/]"
        table.add_row(escape(option.name), escape(option.default), meaning)
    console.print(table, highlight=False)


def summary(method: type[Method]) -> str:
    """The first line of the class's docstring."""
    return (inspect.getdoc(method) or "").partition("\n")[0]
