"""The command line: parses, calls, prints. A user's mistake ends in one sentence and exit 2."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sodap.cli.data import app as data_app
from sodap.errors import SodapError
from sodap.version import __version__

# Heavy imports wait inside the commands: `sodap --help` answers at once. Torch is told before it
# is imported to ask for large pages: on a processor, touching fresh memory is half of the work.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

app = typer.Typer(
    name="sodap",
    help="Image classifiers that keep learning, domain by domain, without keeping old images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app)
console = Console()


def main() -> None:
    """The entry point: turns what went wrong into what a user can read."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        app()
    except SodapError as error:
        print(f"sodap: {error}", file=sys.stderr)
        sys.exit(2)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Our own warnings in one line; those of the libraries are not the user's business."""
    if category.__module__.startswith("sodap."):
        print(f"sodap: warning: {message}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sodap {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Image classifiers that keep learning, domain by domain, without keeping old images."""


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (see `sodap recipes`) or file.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, e.g. seed=1 lr=3e-4."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run; default: runs/STREAM-METHOD-sSEED.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")
    ] = False,
) -> None:
    """Learn a stream of domains and write a folder that tells everything about it."""
    from sodap.cli.progress import ProgressBars
    from sodap.cli.tables import show_result
    from sodap.experiments import is_finished, load_config
    from sodap.experiments import run as run_config

    config = load_config(recipe, changes or [])
    name = f"{Path(config.stream).resolve().stem}-{config.method}-s{config.seed}"
    folder = out or Path("runs") / name
    if resume and is_finished(folder):
        console.print(f"{folder} was finished before; nothing is left to do", markup=False)
    try:
        with ProgressBars(console) as bars:
            record = run_config(config, folder, resume=resume, command=sys.argv, observer=bars)
    except KeyboardInterrupt:
        print("sodap: interrupted; go on with the same command and --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    show_result(console, record, config.method)
    console.print(f"Everything about this run: {folder}", markup=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the two runs.")] = Path(
        "sodap-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Every random number follows from it.")] = 0,
) -> None:
    """Learn the embedded stream of digits twice, remembering and not, and show the difference."""
    from sodap.cli.demo import run_demo

    run_demo(console, out, seed)


@app.command()
def recipes() -> None:
    """List the recipes that `sodap run` knows."""
    from sodap.experiments import read_recipe, recipe_names

    table = Table(box=None, pad_edge=False, show_header=False)
    for name in recipe_names():
        table.add_row(f"[bold]{name}[/]", read_recipe(name)[0])
    console.print(table)
