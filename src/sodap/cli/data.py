"""`sodap data`: which data sets and protocols there are, and what is wrong with the files here."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
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
    from sodap.streams.plans import Plan

app = typer.Typer(
    name="data", help="List data sets and protocols; check the images.", no_args_is_help=True
)
console = Console()

DataFolder = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="Where data sets are; default: SODAP_DATA or data."),
]


@app.command("list")
def list_data(data: DataFolder = None) -> None:
    """List every data set and every protocol, and what of them is here."""
    from sodap.streams import stream_names
    from sodap.streams.catalogue import data_roots, find_source, locate, source_names
    from sodap.streams.protocols import find_protocol, protocol_names

    roots = data_roots(data)
    _say(f"Looked in: {escape(', '.join(map(str, roots)))}")
    _say("\n[bold]Data sets[/]")
    for name in source_names():
        source = find_source(name)
        if not source.classes:
            continue  # folders and tables of one's own are given by their path
        place = locate(source, roots)
        found = f"[green]found[/] at {escape(str(place))}" if place else "[dim]not found[/]"
        size = f", {sum(source.totals.values())} images" if source.totals else ""
        _say(f"[bold]{name}[/]: {escape(source.title)}{size}; {found}")
        _say(f"  classes: {escape(', '.join(source.classes))}")
        _say(f"  licence: {escape(source.licence)}")
        if place is None:
            _say(f"  [dim]{escape(source.advice)}[/]")
    _say("\n[bold]Your own[/]: a folder DOMAIN/CLASS/image or a table, given by its path")
    _say(f"[bold]Made in memory[/]: {', '.join(stream_names())}")
    _say("\n[bold]Protocols[/]")
    for name in protocol_names():
        protocol = find_protocol(name)
        domains = [
            f"{each.name} (never learned)" if each.name in protocol.unseen else each.name
            for each in protocol.domains
        ]
        needed = dict.fromkeys(each.source for each in protocol.domains)
        absent = [each for each in needed if locate(find_source(each), roots) is None]
        state = f"[dim]not here: {', '.join(absent)}[/]" if absent else "[green]all here[/]"
        _say(f"[bold]{name}[/]: {escape(protocol.title)}; {state}")
        _say(f"  domains: {' -> '.join(domains)}")
        _say(f"  classes: {', '.join(protocol.classes)}")
        shares = " : ".join(f"{part:g}" for part in protocol.fractions)
        _say(f"  {shares} by {'group' if protocol.grouped else 'image'}. {escape(protocol.note)}")
        expected = [
            f"{each.name} {'/'.join(map(str, each.expected.values()))}"
            for each in protocol.domains
            if each.expected
        ]
        if expected:
            which = f"{protocol.expected_split} images" if protocol.expected_split else "images"
            _say(f"  {which} in the paper: {', '.join(expected)}")


def _say(line: str) -> None:
    """One line is one line, however narrow the terminal."""
    # A file's name may hold bytes that are no text.
    plain = line.encode(errors="backslashreplace").decode()
    console.print(plain, highlight=False, soft_wrap=True)


@app.command()
def clean() -> None:
    """Delete the decoded copies of images that runs have left in the cache."""
    from sodap.streams.cache import cache_folder, clear_cache

    freed = clear_cache()
    _say(f"{format_bytes(freed)} deleted from {escape(str(cache_folder()))}")


@app.command()
def check(
    stream: Annotated[
        str | None,
        typer.Argument(help="A protocol (see `sodap data list`), a folder or a table of images."),
    ] = None,
    data: DataFolder = None,
    lists: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The paper's authors' lists; no stream: check them alone."
        ),
    ] = None,
    splits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Splits that were saved earlier.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results.")] = Path(
        "sodap-check"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Splits and draws follow from it.")] = 0,
) -> None:
    """Look for leakage, duplicates, flaws and wrong counts; exit with 1 where images leak."""
    from rich.progress import Progress

    from sodap.storage import write_bytes, write_json
    from sodap.streams.check import check_page, check_plan
    from sodap.streams.splits import write_splits

    with _heard() as warned:
        plan = _plan(stream, data, lists, splits, seed)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading images", total=None)
        result = check_plan(
            plan, lambda done, total: progress.update(task, completed=done, total=total)
        )
    result = replace(result, warnings=tuple(warned))
    write_bytes(out / "check.html", check_page(result).encode(errors="backslashreplace"))
    write_json(out / "check.json", result.to_json())
    write_splits(out / "splits.csv", plan.rows())
    show_result(result)
    _say(f"All of it: {escape(str(out / 'check.html'))}, check.json and splits.csv")
    if result.leaks:
        raise typer.Exit(1)
    if result.obstacles and not result.without_images:
        raise typer.Exit(2)


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Our own warnings, for the page; they are passed on to the terminal as well."""
    sentences: list[str] = []
    heard: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            yield sentences
    finally:  # an error must not swallow what was said before it
        for each in heard:
            if each.category.__module__.startswith("sodap."):
                sentences.append(str(each.message))
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _plan(
    stream: str | None, data: str | None, lists: Path | None, splits: Path | None, seed: int
) -> Plan:
    from sodap.streams import make_plan, stream_names
    from sodap.streams.catalogue import data_roots, find_source, locate
    from sodap.streams.plans import plan_lists
    from sodap.streams.protocols import find_protocol

    if lists is not None and splits is not None:
        raise SodapError("give --lists or --splits, not both: each says where an image belongs")
    if lists is not None and not lists.is_dir():
        raise SodapError(f"there is no folder of lists at {lists}")
    if lists is not None and stream in (None, "paper-dr"):
        sources = [find_source(each.source) for each in find_protocol("paper-dr").domains]
        if stream is None or not any(locate(each, data_roots(data)) for each in sources):
            return plan_lists(lists)
    if stream is None:
        raise SodapError("name a protocol, a folder or a table to check (see `sodap data list`)")
    if stream in stream_names():
        raise SodapError(f"'{stream}' is made in memory; there are no files to check")
    given = lists or splits
    return make_plan(stream, data=data, split_seed=seed, splits=str(given) if given else None)


def show_result(result: CheckResult) -> None:
    """The counts as a table, then a line for all else."""
    from sodap.streams.check.result import KINDS

    console.print(_counts(result))
    for kind, places in result.twin_counts().items():
        if places:
            where = ", ".join(f"{count} {place}" for place, count in places.items())
            _say(f"more than once, {KINDS[kind]}: {where}")
    for found, one, several in (
        (result.conflicts, "picture with two labels", "pictures with two labels"),
        (result.unreadable, "unreadable file", "unreadable files"),
        (result.tiny, "tiny image", "tiny images"),
    ):
        if found:
            _say(plural(len(found), one, several))
    for line in (*result.differences, *result.missing):
        _say(escape(line))
    if result.without_images:
        _say(f"no images here, lists alone: {escape(', '.join(result.without_images))}")
    for obstacle in result.obstacles:
        _say(f"[bold red]cannot be learned:[/] {escape(obstacle)}")
    for leak in result.leaks:
        _say(f"[bold red]leak:[/] {escape(str(leak))}")
    if not result.leaks:
        # Green would promise what nobody has looked at.
        colour = "green" if result.all_checked else "yellow"
        _say(f"[{colour}]{escape(result.verdict)}[/]")
    elif result.unchecked:
        _say(escape(result.unchecked))


def _counts(result: CheckResult) -> Table:
    """A line a class: the table is as narrow with fifty classes as with two."""
    from sodap.streams.items import SPLITS

    table = Table(title=escape(f"{result.name}: images"), title_justify="left")
    for name in ("domain", "class"):
        table.add_column(name, overflow="fold")
    for name in (*SPLITS, "all"):
        table.add_column(name, justify="right", no_wrap=True)
    for domain in dict.fromkeys(domain for domain, _ in result.counts):
        splits = [result.counts[domain, kind] for kind in SPLITS]
        lines = [(label, [found[label] for found in splits]) for label in result.classes]
        lines.append(("all", [found.total() for found in splits]))
        for number, (label, counts) in enumerate(lines):
            cells = map(str, (*counts, sum(counts)))
            table.add_row("" if number else escape(domain), escape(label), *cells)
        table.add_section()
    return table
