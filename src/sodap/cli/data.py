"""`sodap data`: list data sets and protocols, check images, delete the image cache."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sodap.errors import SodapError
from sodap.formats import format_bytes, plural

if TYPE_CHECKING:  # heavy imports wait inside the commands
    from sodap.streams.check import CheckResult
    from sodap.streams.items import Source
    from sodap.streams.plans import Plan
    from sodap.streams.protocols import Protocol

app = typer.Typer(
    name="data", help="List data sets and protocols; check images.", no_args_is_help=True
)
console = Console()

DataFolder = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR", help="Folder of the data sets; default: SODAP_DATA or data."
    ),
]


@app.command("list")
def list_data(data: DataFolder = None) -> None:
    """List all data sets and protocols, and which of them were found."""
    from sodap.streams import stream_names
    from sodap.streams.catalogue import data_roots, find_source, source_names
    from sodap.streams.protocols import find_protocol, protocol_names

    roots = data_roots(data)
    _print(f"Looked in: {escape(', '.join(map(str, roots)))}")
    _print("\n[bold]Data sets[/]")
    for source in map(find_source, source_names()):
        if source.classes:  # a user's own folders and tables are given by their path
            _print_source(source, roots)
    _print("\n[bold]Your own images[/]: a folder DOMAIN/CLASS/image or a table, given by its path")
    _print(f"[bold]Ready streams[/]: {', '.join(stream_names())}")
    _print("\n[bold]Protocols[/]")
    for protocol in map(find_protocol, protocol_names()):
        _print_protocol(protocol, roots)


def _print_source(source: Source, roots: Sequence[Path]) -> None:
    from sodap.streams.catalogue import locate

    place = locate(source, roots)
    found = f"[green]found[/] at {escape(str(place))}" if place else "[dim]not found[/]"
    size = f", {sum(source.totals.values())} images" if source.totals else ""
    _print(f"[bold]{source.name}[/]: {escape(source.title)}{size}; {found}")
    _print(f"  classes: {escape(', '.join(source.classes))}")
    _print(f"  licence: {escape(source.licence)}")
    if place is None:
        _print(f"  [dim]{escape(source.advice)}[/]")


def _print_protocol(protocol: Protocol, roots: Sequence[Path]) -> None:
    from sodap.streams.catalogue import find_source, locate

    domains = [
        f"{spec.name} (never learned)" if spec.name in protocol.unseen else spec.name
        for spec in protocol.domains
    ]
    sources = dict.fromkeys(spec.source for spec in protocol.domains)
    absent = [name for name in sources if locate(find_source(name), roots) is None]
    state = f"[dim]not found: {', '.join(absent)}[/]" if absent else "[green]all found[/]"
    _print(f"[bold]{protocol.name}[/]: {escape(protocol.title)}; {state}")
    _print(f"  domains: {' -> '.join(domains)}")
    _print(f"  classes: {', '.join(protocol.classes)}")
    shares = " : ".join(f"{part:g}" for part in protocol.fractions)
    _print(f"  {shares} by {'group' if protocol.grouped else 'image'}. {escape(protocol.note)}")
    expected = [
        f"{spec.name} {'/'.join(map(str, spec.expected.values()))}"
        for spec in protocol.domains
        if spec.expected
    ]
    if expected:
        which = f"{protocol.expected_split} images" if protocol.expected_split else "images"
        _print(f"  {which} in the paper: {', '.join(expected)}")


def _print(line: str) -> None:
    """Print a line without wrapping; bytes that are not UTF-8 (in file names) are escaped."""
    plain = line.encode(errors="backslashreplace").decode()
    console.print(plain, highlight=False, soft_wrap=True)


@app.command()
def clean() -> None:
    """Delete the cache of decoded images."""
    from sodap.streams.cache import cache_folder, clear_cache

    freed = clear_cache()
    _print(f"{format_bytes(freed)} deleted from {escape(str(cache_folder()))}")


@app.command()
def check(
    stream: Annotated[
        str | None,
        typer.Argument(help="A protocol or data set (see `sodap data list`), a folder, a table."),
    ] = None,
    data: DataFolder = None,
    lists: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Lists of the paper's authors; without a stream, check only these."
        ),
    ] = None,
    splits: Annotated[Path | None, typer.Option(metavar="FILE", help="Saved splits.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results.")] = Path(
        "sodap-check"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the splits.")] = 0,
    groups: Annotated[
        str,
        typer.Option(
            metavar="separate|shared",
            help="Whether groups of one name in two data sets are different patients or the same.",
        ),
    ] = "separate",
    classes: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Classes to expect, separated by commas; or all."),
    ] = None,
    skip_unreadable: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable",
            help="Leave out files that cannot be read, as a run with this option does.",
        ),
    ] = False,
) -> None:
    """Look for leakage, duplicates, doubtful classes and bad files.

    Exits with 1 if images leak or a class looks misspelt, with 2 if the images cannot be learned.
    """
    from rich.progress import Progress

    from sodap.evaluation import tiny_tests
    from sodap.storage import write_bytes, write_json
    from sodap.streams.check import check_page, check_plan
    from sodap.streams.splits import write_splits
    from sodap.streams.unreadable import SKIPPED, without_unreadable, write_skipped

    with _collect_warnings() as messages:
        plan = _plan(stream, data, lists, splits, seed, groups, classes)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading images", total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        if skip_unreadable:
            plan = without_unreadable(plan, on_progress=update)
        result = check_plan(plan, update)
    tiny = tiny_tests(
        [(d, c.total()) for (d, split), c in result.counts.items() if split == "test"]
    )
    result = replace(result, warnings=(*messages, *([tiny] if tiny else [])))
    earlier = (out / "check.json").is_file() and not (out / "record.json").exists()
    write_bytes(out / "check.html", check_page(result).encode(errors="backslashreplace"))
    write_json(out / "check.json", result.to_json())
    write_splits(out / "splits.csv", plan.rows())
    if earlier:  # else the file is not a check's
        (out / SKIPPED).unlink(missing_ok=True)
    if plan.skipped:
        write_skipped(out / SKIPPED, plan.skipped)
    show_result(result)
    if tiny:
        _print(f"[yellow]note:[/] {escape(tiny)}")
    listed = f", splits.csv and {SKIPPED}" if plan.skipped else " and splits.csv"
    _print(f"Details: {escape(str(out / 'check.html'))}, check.json{listed}")
    if result.leaks or result.doubtful:
        raise typer.Exit(1)
    if result.obstacles and not result.without_images:
        raise typer.Exit(2)


@contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Collect sodap's own warnings for the page; all warnings are issued again at the end."""
    messages: list[str] = []
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield messages
    finally:  # also after an error
        for each in caught:
            if each.category.__module__.startswith("sodap."):
                messages.append(str(each.message))
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _plan(
    stream: str | None,
    data: str | None,
    lists: Path | None,
    splits: Path | None,
    seed: int,
    groups: str,
    classes: str | None,
) -> Plan:
    from sodap.streams import make_plan, stream_names
    from sodap.streams.catalogue import data_roots, find_source, locate
    from sodap.streams.plans import plan_lists
    from sodap.streams.protocols import find_protocol

    if lists is not None and splits is not None:
        raise SodapError("give --lists or --splits, not both: each one determines the splits")
    if lists is not None and not lists.is_dir():
        raise SodapError(f"there is no folder of lists at {lists}")
    if lists is not None and stream in (None, "paper-dr"):
        sources = [find_source(spec.source) for spec in find_protocol("paper-dr").domains]
        if stream is None or not any(locate(source, data_roots(data)) for source in sources):
            return plan_lists(lists)
    if stream is None:
        raise SodapError(
            "name a protocol, data set, folder or table to check (see `sodap data list`)"
        )
    if stream in stream_names():
        raise SodapError(f"'{stream}' is a ready stream; there are no files to check")
    given = lists or splits
    return make_plan(
        stream,
        data=data,
        split_seed=seed,
        splits=str(given) if given else None,
        groups=groups,
        classes=classes,
    )


def show_result(result: CheckResult) -> None:
    """Print the counts as a table and everything else line by line."""
    from sodap.streams.check.result import KINDS

    console.print(_counts_table(result))
    for kind, places in result.duplicate_counts().items():
        if places:
            where = ", ".join(f"{count} {place}" for place, count in places.items())
            _print(f"duplicates, {KINDS[kind]}: {where}")
    for found, one, several in (
        (result.conflicts, "picture with two labels", "pictures with two labels"),
        (result.unreadable, "unreadable file", "unreadable files"),
        (result.tiny, "tiny image", "tiny images"),
    ):
        if found:
            _print(plural(len(found), one, several))
    for line in (*result.converted, *result.differences, *result.missing):
        _print(escape(line))
    if result.without_images:
        _print(f"checked by lists only, without images: {escape(', '.join(result.without_images))}")
    for sentence in result.doubtful:
        _print(f"[bold red]doubtful:[/] {escape(sentence)}")
    if result.doubtful:
        _print(escape(result.how_to_confirm))
    for obstacle in result.obstacles:
        _print(f"[bold red]cannot be learned:[/] {escape(obstacle)}")
    if result.unreadable:
        _print("Replace unreadable files, or leave them out with --skip-unreadable.")
    for leak in result.leaks:
        _print(f"[bold red]leak:[/] {escape(str(leak))}")
    for question in result.questions:
        _print(f"[yellow]question:[/] {escape(question)}")
    # Green only if everything was checked.
    colour = "bold red" if result.leaks else "green" if result.all_checked else "yellow"
    _print(f"[{colour}]{escape(result.verdict)}[/]")


def _counts_table(result: CheckResult) -> Table:
    """One line per class, so that the table stays narrow with many classes."""
    from sodap.streams.items import SPLITS

    table = Table(title=escape(f"{result.name}: images"), title_justify="left")
    for name in ("domain", "class"):
        table.add_column(name, overflow="fold")
    for name in (*SPLITS, "all"):
        table.add_column(name, justify="right", no_wrap=True)
    for domain in dict.fromkeys(domain for domain, _ in result.counts):
        splits = [result.counts[domain, split] for split in SPLITS]
        lines = [(label, [found[label] for found in splits]) for label in result.classes]
        lines.append(("all", [found.total() for found in splits]))
        for number, (label, counts) in enumerate(lines):
            cells = map(str, (*counts, sum(counts)))
            table.add_row("" if number else escape(domain), escape(label), *cells)
        table.add_section()
    return table
