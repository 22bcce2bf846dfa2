"""The command line: parse, call, print. A user's mistake is one sentence and exit code 2."""

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
from sodap.cli.keys import KeysCommand
from sodap.cli.loading import loading
from sodap.errors import SodapError
from sodap.interruption import interrupt_on_sigterm
from sodap.threads import configure_threads
from sodap.version import __version__

# Slow imports wait inside the commands, so that `sodap --help` and mistakes are answered at once.

app = typer.Typer(
    name="sodap",
    help="Image classifiers that keep learning, domain by domain, without keeping old images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app)
console = Console()

Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings to change, e.g. lr=3e-4; all keys are listed below.",
    ),
]
Runs = Annotated[list[Path], typer.Argument(help="Folders of runs, or record files.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time; default: 4 on a GPU, else 1.")
]


def main() -> None:
    """Run the command line, and print errors and warnings in one line each."""
    sys.argv[0] = "sodap"  # records quote the command without the path of the program
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
    """Print our own warnings; those of libraries are of no use to a user."""
    if category.__module__.startswith("sodap."):
        print(f"sodap: warning: {message}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sodap {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Image classifiers that keep learning, domain by domain, without keeping old images."""


@app.command(cls=KeysCommand)
def run(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe (see `sodap recipes`), or file.")],
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: runs/STREAM-METHOD-sSEED.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run where it stopped.")
    ] = False,
    extend: Annotated[
        bool,
        typer.Option(
            "--extend",
            help="Resume, and learn domains that were added meanwhile as further stages.",
        ),
    ] = False,
    skip_unreadable: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable",
            help="Leave out image files that cannot be read, and list them in skipped.csv.",
        ),
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Send the numbers to tensorboard, mlflow or wandb; may be repeated."),
    ] = None,
) -> None:
    """Learn a stream of domains, and write the model and all results to a folder."""
    from sodap.cli.run import run_recipe

    settings = [*(changes or []), *(["skip_unreadable=true"] if skip_unreadable else [])]
    run_recipe(console, recipe, settings, out=out, resume=resume, extend=extend, logs=log or [])


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the report and the two runs.")] = Path(
        "sodap-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
) -> None:
    """Learn the embedded stream of digits with two methods, and compare them in a report."""
    with loading(console):
        from sodap.cli.demo import run_demo

    run_demo(console, out, seed)


@app.command(cls=KeysCommand)
def bench(
    grid: Annotated[str, typer.Argument(help="Name of a grid (table1), or file.")],
    changes: Changes = None,
    streams: Annotated[str | None, typer.Option(help="Streams, separated by commas.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, separated by commas; l2p@faithful is l2p with faithful=true."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, from 0.")] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=100,
            help="Split every stream this many times, so that each image is tested once.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/GRID.")] = None,
    jobs: Jobs = None,
    no_search: Annotated[
        bool, typer.Option("--no-search", help="Use the default settings of every method.")
    ] = False,
) -> None:
    """Run streams x methods x folds x seeds; started again, it does only what is not finished."""
    from sodap.cli.bench import run_bench

    run_bench(
        console,
        grid,
        changes or [],
        streams=streams,
        methods=methods,
        seeds=seeds,
        folds=folds,
        out=out,
        jobs=jobs,
        search=not no_search,
    )


@app.command()
def table(
    runs: Runs,
    form: Annotated[
        str, typer.Option("--format", help="text, markdown, latex, csv or json.")
    ] = "text",
    against: Annotated[
        str | None,
        typer.Option(
            help="Method to compare with; default: residual-sodap, or the best without it."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="A column, e.g. final_average; may be repeated.")
    ] = None,
    each_seed: Annotated[
        bool, typer.Option("--each-seed", help="A row for every run, not for every method.")
    ] = False,
) -> None:
    """Show scores of runs, mean and standard deviation over seeds, and significant differences."""
    _check_exist(runs)
    with loading(console):
        from sodap.cli.table import show_tables

    show_tables(console, runs, form, against, metric or [], each_seed=each_seed)


@app.command(cls=KeysCommand)
def ablate(
    recipe: Annotated[str, typer.Argument(help="A recipe, or a file.")],
    changes: Changes = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 3,
    only: Annotated[
        str | None, typer.Option(help="Variants, separated by commas, e.g. qe,uw.")
    ] = None,
    extra: Annotated[
        bool,
        typer.Option("--extra", help="Also run variants with a part done another way."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/ablation-STREAM.")] = None,
    jobs: Jobs = None,
) -> None:
    """Remove the parts of a method one at a time, as in the paper's ablation."""
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
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    once: Annotated[bool, typer.Option("--once", help="Show the present state, and end.")] = False,
) -> None:
    """Show a run while it learns: R, losses, validation, drift, speed, time left."""
    if folder.is_file():
        raise SodapError(f"{folder} is a file, not the folder of a run")
    if not folder.exists() and (once or not console.is_terminal):
        raise SodapError(f"there is no run at {folder}")
    with loading(console):
        from sodap.cli.watch import watch_run

    watch_run(console, folder, once=once)


@app.command()
def report(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the page; default: RUN/report, or report.")
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
            help="Method to compare several runs with; default: residual-sodap, or the best."
        ),
    ] = None,
) -> None:
    """Write a page with all figures about one run, or one that compares several."""
    _check_exist(runs)
    with loading(console):
        from sodap.cli.report import run_report

    run_report(console, runs, out, images=images, composed=compose, against=against)


@app.command()
def probe(
    place: Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="Folder of a run or a model.")],
    stream: Annotated[
        str | None, typer.Option(help="Stream with the images, to probe a model without a run.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Folder of the data sets of --stream.")] = None,
    split: Annotated[str, typer.Option(help="Images to look at: val or test.")] = "val",
    images: Annotated[int, typer.Option(min=1, help="Largest number of images per domain.")] = 200,
    layers: Annotated[
        bool, typer.Option("--layers", help="Also take parts away layer by layer; takes longer.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Measure what routing, memory and prompts of a trained model do for its answers."""
    _check_exist([place])
    from sodap.cli.probe import run_probe

    run_probe(
        console,
        place,
        stream=stream,
        data=data,
        split=split,
        images=images,
        layers=layers,
        as_json=as_json,
    )


def _check_exist(places: list[Path]) -> None:
    """Raise an error for a missing path, before slow imports."""
    for place in places:
        if not place.exists():
            raise SodapError(f"{place} does not exist")


@app.command()
def recipes() -> None:
    """List the recipes of `sodap run`."""
    from sodap.runs.config import read_recipe, recipe_names

    table = Table(box=None, pad_edge=False, show_header=False)
    for name in recipe_names():
        table.add_row(f"[bold]{name}[/]", read_recipe(name)[0])
    console.print(table)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Name of a method: show its options.")] = None,
) -> None:
    """List the methods, or show the options of one."""
    from sodap.cli.methods import list_methods, show_method

    if name is None:
        list_methods(console)
    else:
        show_method(console, name)
