"""The command line: parses, calls, prints. A user's mistake ends in one sentence and exit 2."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sodap.allocator import keep_freed_memory
from sodap.cli.data import app as data_app
from sodap.errors import SodapError
from sodap.interruption import interrupt_on_sigterm
from sodap.threads import configure_threads
from sodap.version import __version__

# Heavy imports wait inside the commands: `sodap --help` answers at once.

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
    sys.argv[0] = "sodap"  # records quote the command, wherever it is installed
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    keep_freed_memory()
    configure_threads()
    interrupt_on_sigterm()
    try:
        app(prog_name="sodap")
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
    log: Annotated[
        list[str] | None,
        typer.Option(help="Send the numbers to tensorboard, mlflow or wandb; may be repeated."),
    ] = None,
) -> None:
    """Learn a stream of domains and write a folder that tells everything about it."""
    from sodap.cli.progress import ProgressBars
    from sodap.cli.tables import show_result
    from sodap.runs import load_config
    from sodap.runs import run as run_config
    from sodap.runs.callback import Callbacks
    from sodap.runs.runner import check_folder
    from sodap.runs.tracking import Tracker

    config = load_config(recipe, changes or [])
    name = f"{Path(config.stream).resolve().stem}-{config.method}-s{config.seed}"
    folder = out or Path("runs") / name
    trackers = [Tracker(kind, config, folder) for kind in dict.fromkeys(log or [])]
    if resume and check_folder(config, folder, resume=True) is not None:
        console.print(f"{folder} was finished before; nothing is left to do", markup=False)
    elif resume and not (folder / "config.json").exists():
        console.print(f"there is no run in {folder} to go on with; it begins now", markup=False)
    try:
        with ProgressBars(console) as bars:
            both = Callbacks(bars, *trackers)
            record = run_config(config, folder, resume=resume, command=sys.argv, callback=both)
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
def bench(
    grid: Annotated[str, typer.Argument(help="A grid's name (table1) or file.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings for all runs, e.g. epochs=8."),
    ] = None,
    streams: Annotated[str | None, typer.Option(help="Streams, with commas between.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, with commas between; l2p@faithful is l2p with faithful=true."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="So many, from 0.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/GRID.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: 4 on a GPU, else 1.")
    ] = None,
    no_search: Annotated[
        bool, typer.Option("--no-search", help="Take every method's defaults as they are.")
    ] = False,
) -> None:
    """Run streams x methods x seeds; the same command again does only what is left to do."""
    from sodap.cli.bench import run_bench

    run_bench(
        console,
        grid,
        changes or [],
        streams=streams,
        methods=methods,
        seeds=seeds,
        out=out,
        jobs=jobs,
        search=not no_search,
    )


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(help="Folders with runs, or record files.")],
    form: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")] = "text",
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with this method; default: residual-sodap, or the best without it."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="A column, e.g. final_average; may be repeated.")
    ] = None,
) -> None:
    """Show what runs have scored, mean and standard deviation over seeds, and who beats whom."""
    from sodap.cli.bench import show_tables

    show_tables(console, runs, form, against, metric or [])


@app.command()
def ablate(
    recipe: Annotated[str, typer.Argument(help="A recipe of residual-sodap, or a file.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings for all runs, e.g. stream=skin."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="So many, from 0.")] = 3,
    only: Annotated[
        str | None, typer.Option(help="Variants, with commas between, e.g. qe,uw.")
    ] = None,
    extra: Annotated[
        bool,
        typer.Option("--extra", help="Other readings of the paper as well, not only removals."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/ablation-STREAM.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: 4 on a GPU, else 1.")
    ] = None,
) -> None:
    """Remove the method's parts one at a time and show what each is worth, as the paper does."""
    from sodap.cli.ablate import run_ablation

    run_ablation(
        console,
        recipe,
        changes or [],
        seeds=seeds,
        only=only,
        extra=extra,
        out=out,
        jobs=jobs,
    )


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands now, and end.")] = False,
) -> None:
    """Show a run while it goes on: R, losses, validation, drift, speed, time left."""
    from sodap.cli.watch import watch_run

    watch_run(console, folder, once=once)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders with runs, or record files.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the page; default: RUN/report, or report.")
    ] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Show sample images in the page.")
    ] = True,
    compose: Annotated[
        bool, typer.Option("--compose", help="Exchange heads between stages first; takes a while.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare several runs with this method; default: residual-sodap, or the best."
        ),
    ] = None,
) -> None:
    """Write a page about a run, or one that compares several, with all figures."""
    from sodap.cli.report import run_report

    run_report(console, runs, out, images=images, composed=compose, against=against)


@app.command()
def recipes() -> None:
    """List the recipes that `sodap run` knows."""
    from sodap.runs import read_recipe, recipe_names

    table = Table(box=None, pad_edge=False, show_header=False)
    for name in recipe_names():
        table.add_row(f"[bold]{name}[/]", read_recipe(name)[0])
    console.print(table)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method's name: show its options.")] = None,
) -> None:
    """List the methods that `sodap run` knows, or show every option of one."""
    from sodap.cli.methods import list_methods, show_method

    if name is None:
        list_methods(console)
    else:
        show_method(console, name)
