"""Differences of methods on the page about several runs: over seeds, or over test images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sodap.evaluation import KIND, MIN_SEEDS, difference_intervals
from sodap.formats import MISSING, format_difference, plural
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, Paragraph
from sodap.reporting.tables.metrics import SCORES
from sodap.reporting.tables.stream_table import StreamTable
from sodap.reporting.tables.table import Cell, Row, Table, difference_cell, number_cell

COMPARED = SCORES[:4]
MAX_IMAGE_TABLES = 4
"""Most tables of differences by image, which take time."""


def differences(
    runs: Sequence[LoadedRun], tables: Sequence[tuple[StreamTable, str | None]]
) -> Iterator[Block]:
    """Differences of each table to its reference, and of runs with the same test images."""
    yield from (differences_table(table, reference) for table, reference in tables if reference)
    yield from _by_image(runs, tables)


def differences_table(table: StreamTable, reference: str) -> Table:
    """Every method minus the reference, paired by seed."""
    others = [method for method in table.methods if method != reference]
    families = [table.family(reference, metric.key) for metric in COMPARED]
    seeds = [len(table.common_seeds(method, reference)) for method in others]
    rows: list[Row] = [
        [method, number_cell(count), *(difference_cell(each[method]) for each in families)]
        for method, count in zip(others, seeds, strict=True)
    ]
    how = (
        f"with a {table.intervals}; bold as in `sodap table`: more than {table.noise}, corrected "
        f"for all differences of a column (Holm)"
        if max(seeds) >= MIN_SEEDS
        else f"without intervals, since fewer than {MIN_SEEDS} seeds are in common"
    )
    return Table(
        f"{table.title}: minus {reference}, paired by seed, {how}",
        ["Method", "Seeds", *(metric.title for metric in COMPARED)],
        rows,
        sortable=True,
    )


def _by_image(
    runs: Sequence[LoadedRun], tables: Sequence[tuple[StreamTable, str | None]]
) -> Iterator[Block]:
    """One table per group of runs with the same stream, seed and test images.

    A page has intervals of one kind: over seeds if there are enough of them, else over images.
    """
    if any(
        len(table.common_seeds(method, reference)) >= MIN_SEEDS
        for table, reference in tables
        if reference
        for method in table.methods
        if method != reference
    ):
        if not all(table.answers for table, _ in tables):
            yield Paragraph(
                "These intervals are over seeds. A report of the runs of one seed has intervals "
                "over test images.",
                "note",
            )
        return
    references = {table.stream: reference for table, reference in tables}
    groups: dict[tuple[str, int], list[list[LoadedRun]]] = {}
    for run in runs:
        if run.finished and run.outcomes() is not None:
            known = groups.setdefault((run.stream_name, run.seed), [])
            same = next((group for group in known if group[0].has_test_images_of(run)), None)
            if same is None:
                known.append([run])
            else:
                same.append(run)
    pairable = [group for known in groups.values() for group in known if len(group) > 1]
    for group in pairable[:MAX_IMAGE_TABLES]:
        yield images_table(group, references[group[0].stream_name])
    for (stream, seed), known in groups.items():
        if len(known) > 1:
            names = " | ".join(", ".join(run.name for run in group) for group in known)
            yield Paragraph(
                f"{stream}, seed {seed}: these runs may have different test images and are not "
                f"compared by image: {names}.",
                "note",
            )
    if len(pairable) > MAX_IMAGE_TABLES:
        left = plural(len(pairable) - MAX_IMAGE_TABLES, "more group of runs", "more groups of runs")
        yield Paragraph(f"{left} can be compared by image in a report of fewer runs.")


def images_table(group: Sequence[LoadedRun], reference: str | None) -> Table:
    """Every run minus that of the reference (or the first), paired by test image."""
    first = next((run for run in group if run.name == reference), group[0])
    base = first.outcomes()
    rows: list[Row] = []
    for run in group:
        other = run.outcomes()
        if run is first or base is None or other is None:
            continue
        if [table.shape for table in other] != [table.shape for table in base]:
            continue
        intervals = difference_intervals(other, base)
        cells = []
        for metric in COMPARED:
            one, two, ends = metric.of(run.record), metric.of(first.record), intervals[metric.key]
            if one is None or two is None or ends is None:
                cells.append(Cell(MISSING))
                continue
            text = format_difference(one - two, ends.low, ends.high)
            cells.append(Cell(text, one - two, bold=ends.low > 0 or ends.high < 0))
        rows.append([run.name, *cells])
    return Table(
        f"{first.stream_name}, seed {first.seed}: minus {first.name}, paired by test image, with "
        f"95 % {KIND}; bold if the interval excludes 0 (not corrected)",
        ["Method", *(metric.title for metric in COMPARED)],
        rows,
        sortable=True,
    )
