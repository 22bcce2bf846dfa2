"""Several runs beside each other: who does better, by how much, and whether that is noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from sodap.evaluation import FEWEST, difference_intervals, summary
from sodap.formats import format_bytes, format_difference, format_duration, format_score, plural
from sodap.reporting.figures import accuracy as figures
from sodap.reporting.figures.accuracy import Record
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Card, Cell, Drawing, Prose, Section, Table
from sodap.reporting.pages.cost import stored_bytes
from sodap.reporting.pages.origin import command_line, troubles
from sodap.reporting.tables.comparability import DEALT, dealt
from sodap.reporting.tables.conclusion import verdict
from sodap.reporting.tables.formats import show, show_claim, show_spread
from sodap.reporting.tables.significance import Claim, claims
from sodap.reporting.tables.stream_table import (
    CONSTANT,
    METRICS,
    StreamTable,
    make_tables,
    variants_below,
)

SCORES = ("average_accuracy", "average_forgetting", "final_average", "backward_transfer")
MOST_LINES = 6
"""Methods in one figure of lines; more cannot be told apart."""
CHANGES = "+changes"
"""After a commit: the code was another than that of the commit, so the run is no result."""


def comparison_sections(runs: Sequence[ShownRun], against: str | None = None) -> list[Section]:
    """What is said about several runs; runs without a finished stage are named, not compared.

    `against` names whom the others are compared with, as for `sodap table`.
    """
    some = [run for run in runs if run.learned]
    tables = make_tables([_as_named(run) for run in some if run.status == "finished"])
    sections = [Section("runs", "All runs", list(_runs(runs)))]
    if tables:
        sections.insert(0, Section("table", "Methods and streams", list(_table_one(tables))))
        rivals = [table.rival(against) for table in tables]
        blocks = [*_over_seeds(tables, rivals), *_over_images(some, tables, rivals)]
        if blocks:
            sections.append(Section("differences", "Differences", blocks))
    side_by_side = list(_side_by_side(runs))
    if side_by_side:
        sections.append(Section("matrices", "Side by side", side_by_side))
    return [*sections, _troubles(runs), _commands(runs)]


def _as_named(run: ShownRun) -> Record:
    """The record under the run's name, so that two settings of one method are two methods."""
    record = {**run.record, DEALT: dealt(run.folder) if run.folder is not None else None}
    if record.get("variant"):  # its method keeps the name that it has without any change
        return {**record, "variant": run.name}
    return {**record, "config": {**record["config"], "method": run.name}}


# ------------------------------------------------------------------ methods x streams


def _table_one(tables: Sequence[StreamTable]) -> Iterator[Block]:
    yield Prose(
        "Mean ± standard deviation over seeds of AvgACC (more is better) and AvgF (less is "
        "better). The best of a column is bold, unless there are fewer than "
        f"{FEWEST} seeds; variants, methods that see all domains at once and the constant answer "
        "take no part in that."
    )
    yield method_table(tables)
    for table in tables:
        tone: Literal["plain", "warning"] = "warning" if table.unequal else "plain"
        yield Prose(f"{table.title}: {verdict(table)}", tone)


def method_table(tables: Sequence[StreamTable]) -> Table:
    """Rows are methods, columns streams, as in the paper's Table 1."""
    metrics = [METRICS[key] for key in SCORES[:2]]
    methods = list(dict.fromkeys(method for table in tables for method in table.methods))
    variants = {name: method for table in tables for name, method in table.variants.items()}
    heads = ["Method"]
    for table in tables:
        heads += [f"{table.stream} {metric.title}" for metric in metrics]
    rows: list[Sequence[str | Cell]] = []
    for method in variants_below(methods, variants):
        row: list[str | Cell] = [method]
        for table in tables:
            for metric in metrics:
                if method not in table.numbers:
                    row.append(Cell("–"))
                    continue
                found = table.spread(method, metric.key)
                text = show_spread(found, metric, " ± ")
                best = method in table.winners(metric)
                row.append(Cell(text, None if found is None else found.mean, bold=best))
        rows.append(row)
    last: list[str | Cell] = [CONSTANT]
    for table in tables:
        for metric in metrics:
            value = table.constant.get(metric.key)
            last.append(Cell(show(value, metric), value, faint=True))
    return Table("Methods and streams", heads, [*rows, last], sortable=True)


# ------------------------------------------------------------------ every run


def _runs(runs: Sequence[ShownRun]) -> Iterator[Block]:
    yield Prose("Sort by a column, or show some of the runs only: the figures below follow.")
    yield runs_table(runs)


def runs_table(runs: Sequence[ShownRun]) -> Table:
    heads = ["Run", "Stream", "Method", "Seed", "Status", "AvgACC", "AvgF", "Final", "BWT"]
    heads += ["Macro-F1", "Trained", "Stored", "Time"]
    rows: list[Sequence[str | Cell]] = []
    for number, run in enumerate(runs, 1):
        head: list[str | Cell] = [
            Cell(str(number), number),
            run.stream_name,
            run.name,
            Cell(str(run.seed), run.seed),
            Cell(run.status, bold=run.status != "finished"),
        ]
        rows.append([*head, *(_numbers(run) if run.learned else ["–"] * (len(heads) - 5))])
    tags = [tag_of(number) for number in range(1, len(runs) + 1)]
    return Table("Every run", heads, rows, sortable=True, filters=(1, 2, 4), tags=tags)


def tag_of(number: int) -> str:
    """What in the page belongs to a run."""
    return f"run-{number}"


def _numbers(run: ShownRun) -> list[Cell]:
    scores = summary(run.record["R"]["accuracy"])
    f1 = summary(run.record["R"]["macro_f1"])["final_average"]
    values = [*(scores[key] for key in SCORES), f1]
    trained = max(stage["trainable_parameters"] for stage in run.stages)
    stored = stored_bytes(run.stages[-1])
    seconds = sum(stage["seconds"] for stage in run.stages)
    return [
        *(Cell(format_score(value), value) for value in values),
        Cell(f"{trained:,}", trained),
        Cell(format_bytes(stored), stored),
        Cell(format_duration(seconds), seconds),
    ]


# ------------------------------------------------------------------ differences


def _over_seeds(tables: Sequence[StreamTable], rivals: Sequence[str | None]) -> Iterator[Block]:
    for table, rival in zip(tables, rivals, strict=True):
        if rival is not None:
            yield differences_table(table, rival)


def differences_table(table: StreamTable, rival: str) -> Table:
    """Every method minus the rival, paired by seed."""
    rows: list[Sequence[str | Cell]] = []
    others = [method for method in table.methods if method != rival]
    columns = [claims([(table, method, rival, key) for method in others]) for key in SCORES]
    for method, *found in zip(others, *columns, strict=True):
        seeds = len(table.shared(method, rival))
        rows.append([method, Cell(str(seeds), seeds), *map(_gap, found)])
    sure = any(len(table.shared(method, rival)) >= FEWEST for method in others)
    told = (
        "with 95 % bootstrap intervals over seeds; bold as in `sodap table`: where a difference "
        "is more than the noise between seeds, corrected for all of its column (Holm)"
        if sure
        else f"without intervals, for fewer than {FEWEST} seeds are in common"
    )
    return Table(
        f"{table.title}: minus {rival}, paired by seed, {told}",
        ["Method", "Seeds", *(METRICS[key].title for key in SCORES)],
        rows,
        sortable=True,
    )


def _gap(claim: Claim | None) -> Cell:
    text, bold = show_claim(claim)
    return Cell(text, None if claim is None else claim.gap.mean, bold=bold)


def _over_images(
    runs: Sequence[ShownRun], tables: Sequence[StreamTable], rivals: Sequence[str | None]
) -> Iterator[Block]:
    """Pairs of runs that were asked about the same images: one table a stream and seed."""
    names = {table.stream: rival for table, rival in zip(tables, rivals, strict=True)}
    groups: dict[tuple[str, int], list[list[ShownRun]]] = {}
    for run in runs:
        if run.status == "finished" and run.outcomes() is not None:
            alike = groups.setdefault((run.stream_name, run.seed), [])
            mine = next((group for group in alike if group[0].tested_like(run)), None)
            if mine is None:
                alike.append([run])
            else:
                mine.append(run)
    shown_groups = [group for alike in groups.values() for group in alike if len(group) > 1]
    for group in shown_groups[:4]:
        yield images_table(group, names[group[0].stream_name])
    for (stream, seed), alike in groups.items():
        if len(alike) > 1:
            sides = [", ".join(run.name for run in group) for group in alike]
            yield Prose(
                f"{stream}, seed {seed}: not paired by image, since they are not known to have "
                f"been tested on the same ones: {'; with '.join(sides)}.",
                "note",
            )
    if len(shown_groups) > 4:
        left = len(shown_groups) - 4
        more = plural(left, "more group of runs", "more groups of runs")
        yield Prose(f"{more} with one stream and seed can be compared image by image, few at once.")


def images_table(group: Sequence[ShownRun], rival: str | None) -> Table:
    """Every run minus the rival's (the first one's, if it has none here), paired by test image.

    All of `group` were tested on the same images.
    """
    first = next((run for run in group if run.name == rival), group[0])
    base = first.outcomes()
    scores = summary(first.record["R"]["accuracy"])
    rows: list[Sequence[str | Cell]] = []
    for run in group:
        other = run.outcomes()
        if run is first or base is None or other is None:
            continue
        if [table.shape for table in other] != [table.shape for table in base]:
            continue
        ends = difference_intervals(other, base)
        mine = summary(run.record["R"]["accuracy"])
        cells = []
        for key in SCORES:
            one, two, both = mine[key], scores[key], ends[key]
            if one is None or two is None or both is None:
                cells.append(Cell("–"))
                continue
            text = format_difference(one - two, both.low, both.high)
            cells.append(Cell(text, one - two, bold=both.low > 0 or both.high < 0))
        rows.append([run.name, *cells])
    return Table(
        f"{first.stream_name}, seed {first.seed}: minus {first.name}, paired by test image, with "
        f"95 % bootstrap intervals over images; bold where they leave 0 out, each for itself",
        ["Method", *(METRICS[key].title for key in SCORES)],
        rows,
        sortable=True,
    )


# ------------------------------------------------------------------ side by side


def _side_by_side(runs: Sequence[ShownRun]) -> Iterator[Block]:
    streams = dict.fromkeys(run.stream_name for run in runs)
    for place, stream in enumerate(streams, 1):
        lines: dict[str, Record] = {}
        seen: set[str] = set()
        for number, run in enumerate(runs, 1):
            if run.stream_name == stream and run.status == "finished" and run.name not in seen:
                seen.add(run.name)
                lines[f"{number}: {run.row}"] = run.record
        domains = {len(record["stream"]["domains"]) for record in lines.values()}
        if 1 < len(lines) <= MOST_LINES and len(domains) == 1:
            yield Drawing(
                f"forgetting-{place}",
                f"Accuracy over the stages of {stream}: {', '.join(lines)}",
                figures.forgetting(lines),
                f"{stream}: accuracy of each domain over the stages, one run of each method. "
                f"Dotted: before the domain was learned. Numbers are those of the table.",
            )
    for number, run in enumerate(runs, 1):
        if run.learned:
            yield Card(f"{number}: {run.title}", shaded_matrix(run), tag_of(number))


def shaded_matrix(run: ShownRun) -> Table:
    """R as a table whose cells are coloured."""
    R = run.record["R"]["accuracy"]
    return Table(
        "Accuracy after each stage",
        ["After", *run.domains],
        [
            [
                run.domains[stage],
                *(
                    Cell(
                        format_score(v),
                        v,
                        faint=domain > stage,
                        shade=v if domain <= stage else None,
                    )
                    for domain, v in enumerate(row)
                ),
            ]
            for stage, row in enumerate(R)
        ],
    )


# ------------------------------------------------------------------ what else


def _troubles(runs: Sequence[ShownRun]) -> Section:
    found: list[Block] = []
    for number, run in enumerate(runs, 1):
        found += [
            Prose(f"{number}, {run.title}: {words}", "warning")
            for words in troubles(replace(run, stream=None))
        ]
    return Section("troubles", "What went wrong", found or [Prose("Nothing was reported.")])


def _commands(runs: Sequence[ShownRun]) -> Section:
    rows: list[Sequence[str | Cell]] = []
    for number, run in enumerate(runs, 1):
        env = run.record.get("environment") or {}
        commit, changed, _ = (env.get("commit") or "–").partition(CHANGES)
        command = run.record.get("command")
        rows.append(
            [
                Cell(str(number), number),
                run.title,
                command_line(command) if command else "–",
                env.get("sodap") or "–",
                commit[:12] + changed,
                env.get("gpu") or env.get("processor") or "–",
            ]
        )
    heads = ["Run", "What", "Command", "sodap", "Commit", "Computer"]
    tags = [tag_of(number) for number in range(1, len(runs) + 1)]
    return Section(
        "origin",
        "How to get this again",
        [Table("The command of each run", heads, rows, sortable=True, tags=tags)],
    )
