"""Section on the stream: sample images, counts, checks of the splits."""

from __future__ import annotations

from collections.abc import Iterator

from sodap.formats import plural
from sodap.reporting.figures import images as figures
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, FigureBlock, Paragraph, Section
from sodap.reporting.tables.table import Table, count_cell

SPLIT_NAMES = {"train": "training", "val": "validation", "test": "test"}


def stream_section(run: LoadedRun) -> Section:
    return Section("stream", "The stream", list(_blocks(run)))


def _blocks(run: LoadedRun) -> Iterator[Block]:
    domains = run.record.stream.domains
    if not domains:
        yield Paragraph("The record has no information about the stream.", "note")
        return
    yield Paragraph(
        f"{plural(len(run.classes), 'class', 'classes')}, {plural(len(domains), 'domain')}: "
        f"{' → '.join(run.domains)}. The images of earlier domains are not available when a new "
        f"domain is learned."
    )
    for note in run.record.stream.notes:
        yield Paragraph(note, "note")
    if run.show_images and run.stream is not None:
        first = ", for the first ten classes" if len(run.classes) > figures.COLUMNS else ""
        yield FigureBlock(
            "stream-samples",
            f"Test images of the domains of {run.stream_name}",
            figures.samples(run.stream),
            f"Test images of each domain, in the order of the stages{first}.",
        )
    else:
        reason = run.no_stream if run.show_images else "the report was made with --no-images"
        yield Paragraph(f"No images are shown: {reason}.", "note")
    yield checks_table(run)
    yield counts_table(run)


def counts_table(run: LoadedRun) -> Table:
    """Images of each domain, split and class."""
    return Table(
        "Images per class",
        ["Domain", "Split", *run.classes, "All"],
        [
            [
                domain.name,
                SPLIT_NAMES[split],
                *map(count_cell, [*counts, sum(counts)]),
            ]
            for domain in run.record.stream.domains
            for split, counts in domain.counts.model_dump().items()
            if sum(counts)
        ],
        wide=True,
    )


def checks_table(run: LoadedRun) -> Table:
    return Table(
        "Checks of the splits. `sodap data check` also finds near duplicates.",
        ["Check", "Status", "Details"],
        [[check.title, check.status, check.details] for check in run.checks],
    )
