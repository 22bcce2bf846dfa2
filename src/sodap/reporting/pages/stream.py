"""What was learned from: images, counts, splits."""

from __future__ import annotations

from collections.abc import Iterator

from sodap.formats import plural
from sodap.reporting.figures import accuracy as figures
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Cell, Drawing, Prose, Section, Table

KINDS = {"train": "training", "val": "validation", "test": "test"}


def stream_section(run: ShownRun) -> Section:
    return Section("stream", "The stream", list(_blocks(run)))


def _blocks(run: ShownRun) -> Iterator[Block]:
    domains = run.record["stream"]["domains"]
    if not domains:
        yield Prose("The record says nothing about the stream.", "note")
        return
    yield Prose(
        f"{plural(len(run.classes), 'class', 'classes')}, {plural(len(domains), 'domain')}: "
        f"{' → '.join(run.domains)}. When a new domain comes, the images of those before are gone."
    )
    for note in run.record["stream"].get("notes", ()):
        yield Prose(note, "note")
    if run.images and run.stream is not None:
        yield Drawing(
            "stream-samples",
            f"Test images of the domains of {run.stream_name}",
            figures.samples(run.stream),
            "Test images of each domain, in the order of their arrival"
            + (", for the first ten classes." if len(run.classes) > figures.COLUMNS else "."),
        )
    elif not run.images:
        yield Prose("No images are shown: the report was made without them.", "note")
    else:
        yield Prose(f"No images are shown: {run.no_stream}.", "note")
    yield checks_table(run)
    if all("counts" in domain for domain in domains):
        yield counts_table(run)


def counts_table(run: ShownRun) -> Table:
    """Images of each class, domain and split."""
    return Table(
        "Images of each class",
        ["Domain", "Split", *run.classes, "All"],
        [
            [domain["name"], KINDS[kind], *map(_count, counts), _count(sum(counts))]
            for domain in run.record["stream"]["domains"]
            for kind, counts in domain["counts"].items()
            if sum(counts)
        ],
        wide=True,
    )


def checks_table(run: ShownRun) -> Table:
    return Table(
        "Are the splits sound? Near copies are the business of `sodap data check`.",
        ["Check", "Verdict", "Found"],
        [[check.what, check.verdict, check.words] for check in run.checks],
    )


def _count(number: int) -> Cell:
    return Cell(f"{number:,}", number, faint=number == 0)
