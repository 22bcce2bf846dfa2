"""The sections of the page about several runs: results, differences, R side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sodap.evaluation import MIN_SEEDS
from sodap.formats import (
    MISSING,
    format_bytes,
    format_duration,
    format_score,
    plural,
)
from sodap.reporting.figures import accuracy as figures
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.accuracy import matrix_table
from sodap.reporting.pages.blocks import Block, Card, FigureBlock, Paragraph, Section
from sodap.reporting.pages.differences import COMPARED, differences
from sodap.reporting.pages.origin import command_line, problems
from sodap.reporting.pages.stream import stream_section
from sodap.reporting.tables.conclusion import conclusion
from sodap.reporting.tables.metrics import METRICS, SCORES
from sodap.reporting.tables.results import Result
from sodap.reporting.tables.stream_table import (
    CONSTANT,
    StreamTable,
    make_tables,
    variants_below,
)
from sodap.reporting.tables.table import (
    Cell,
    Row,
    Table,
    change_cell,
    number_cell,
    score_cell,
)

FEW_RUNS = 4
"""With at most this many runs, R comes first on the page."""
MAX_LINES = 6
"""Most methods in one figure of lines."""
CHANGES = "+changes"
"""Suffix of a commit, if the code differed from it."""


def comparison_sections(
    runs: Sequence[LoadedRun], against: str | None = None, links: Sequence[str] = ()
) -> list[Section]:
    """All sections; runs without a finished stage are listed, but not compared.

    `against` is the method that the others are compared with. `links` are addresses of the pages
    about the single runs, empty for a run without one.
    """
    learned = [run for run in runs if run.stages]
    tables = make_tables(
        Result.of(run.record, run.folder, _row(run)) for run in learned if run.finished
    )
    sections = [Section("runs", "All runs", list(_all_runs(runs)))]
    if tables:
        sections.insert(0, Section("table", "Methods and streams", list(_methods(tables))))
        found = [(table, table.reference(against)) for table in tables]
        if blocks := list(differences(learned, found)):
            sections.append(Section("differences", "Differences", blocks))
    if len(runs) <= FEW_RUNS:
        first: list[Block] = [*_matrices(runs, links), *_forgetting(runs), *_changes(learned)]
        sections.insert(0, Section("matrices", "Side by side", first))
        if runs[0].stream and len({run.stream_name for run in runs}) == 1:
            sections.insert(1, stream_section(runs[0]))
    else:
        last: list[Block] = [*_forgetting(runs), *_matrices(runs, links)]
        sections.append(Section("matrices", "Side by side", last))
    sections = [section for section in sections if section.blocks]
    return [*sections, _problems(runs), _commands(runs)]


def _row(run: LoadedRun) -> str:
    """Row of a table; the folds of a run are one row, even if their searches chose differently."""
    return run.name if run.record.config.fold is None else run.record.row


# ------------------------------------------------------------------ methods and streams


def _methods(tables: Sequence[StreamTable]) -> Iterator[Block]:
    yield Paragraph(
        "Mean ± standard deviation over seeds of the final average and AvgACC (higher is better) "
        "and of AvgF (lower is better). The best mean of a column is bold, if there are at least "
        f"{MIN_SEEDS} seeds. Variants, methods that see all domains at once and the constant "
        "answer are not ranked."
    )
    yield method_table(tables)
    for table in tables:
        text = f"{table.title}: {conclusion(table)}"
        yield Paragraph(text, "warning" if table.unequal else "plain")


def method_table(tables: Sequence[StreamTable]) -> Table:
    """Methods (rows) and streams (columns), as in the paper's Table 1."""
    columns = [(table, metric) for table in tables for metric in COMPARED[:3]]
    methods = list(dict.fromkeys(method for table in tables for method in table.methods))
    variants = {name: method for table in tables for name, method in table.variants.items()}
    rows: list[Row] = []
    for method in variants_below(methods, variants):
        cells = []
        for table, metric in columns:
            found = table.mean(method, metric.key) if method in table.scores else None
            best = method in table.winners(metric)
            cells.append(Cell(metric.format_mean(found), found.mean if found else None, bold=best))
        rows.append([method, *cells])
    constant = [score_cell(table.constant[metric.key], faint=True) for table, metric in columns]
    heads = ["Method", *(f"{table.stream} {metric.title}" for table, metric in columns)]
    return Table("Methods and streams", heads, [*rows, [CONSTANT, *constant]], sortable=True)


# ------------------------------------------------------------------ all runs


def _all_runs(runs: Sequence[LoadedRun]) -> Iterator[Block]:
    yield Paragraph("Click a heading to sort. Runs that are filtered out are hidden below as well.")
    yield runs_table(runs)


def runs_table(runs: Sequence[LoadedRun]) -> Table:
    heads = ["Run", "Stream", "Method", "Seed", "Status", *(metric.title for metric in SCORES)]
    heads += ["Trained", "Stored", "Time"]
    rows: list[Row] = []
    for number, run in enumerate(runs, 1):
        row: list[str | Cell] = [
            number_cell(number),
            run.stream_name,
            run.name,
            number_cell(run.seed),
            Cell(run.record.status, bold=not run.finished),
        ]
        rows.append([*row, *(_numbers(run) if run.stages else [MISSING] * (len(heads) - len(row)))])
    return Table("All runs", heads, rows, sortable=True, filters=(1, 2, 4), tags=_tags(runs))


def _tags(runs: Sequence[LoadedRun]) -> list[str]:
    return [f"run-{number}" for number in range(1, len(runs) + 1)]


def _numbers(run: LoadedRun) -> list[Cell]:
    stored = run.stages[-1].stored_bytes
    seconds = sum(stage.seconds for stage in run.stages)
    return [
        *(score_cell(metric.of(run.record)) for metric in SCORES),
        number_cell(max(stage.trainable_parameters for stage in run.stages)),
        Cell(format_bytes(stored), stored),
        Cell(format_duration(seconds), seconds),
    ]


# ------------------------------------------------------------------ side by side


def _matrices(runs: Sequence[LoadedRun], links: Sequence[str]) -> Iterator[Card]:
    links = links or [""] * len(runs)
    for number, (run, tag, link) in enumerate(zip(runs, _tags(runs), links, strict=True), 1):
        if run.stages:
            yield Card(f"{number}: {run.title}", matrix_table(run, shaded=True), tag, link)


def _changes(runs: Sequence[LoadedRun]) -> Iterator[Table]:
    """Change of accuracy of each old domain, if the runs have the same domains."""
    if not runs or any(run.domains != runs[0].domains for run in runs):
        return
    rows: list[Row] = []
    for run in runs:
        R = run.record.R.accuracy
        changes = [R[-1][domain] - R[domain][domain] for domain in range(len(R) - 1)]
        cells = [*map(change_cell, changes)]
        rows.append([run.name, *cells, *[MISSING] * (len(run.domains) - 1 - len(cells))])
    yield Table(
        "What was forgotten: change of accuracy from a domain's own stage to the last",
        ["Method", *runs[0].domains[:-1]],
        rows,
    )


def _forgetting(runs: Sequence[LoadedRun]) -> Iterator[FigureBlock]:
    """One figure per stream, with the first finished run of each method."""
    for place, stream in enumerate(dict.fromkeys(run.stream_name for run in runs), 1):
        first: dict[str, tuple[str, LoadedRun]] = {}
        for number, run in enumerate(runs, 1):
            if run.stream_name == stream and run.finished:
                first.setdefault(run.name, (f"{number}: {run.record.row}", run))
        shown = dict(first.values())
        if 1 < len(shown) <= MAX_LINES and len({len(run.domains) for run in shown.values()}) == 1:
            domains = next(iter(shown.values())).domains
            yield FigureBlock(
                f"forgetting-{place}",
                f"Accuracy over the stages of {stream}: {', '.join(shown)}",
                figures.forgetting(
                    {label: run.record.R.accuracy for label, run in shown.items()}, domains
                ),
                f"{stream}: accuracy of each domain over the stages, one run per method. A falling "
                f"line is forgetting. Dotted: before the domain was learned.",
            )


# ------------------------------------------------------------------ problems and origin


def _problems(runs: Sequence[LoadedRun]) -> Section:
    affected: dict[str, list[int]] = {}
    for number, run in enumerate(runs, 1):
        for text in problems(replace(run, stream=None)):
            affected.setdefault(text, []).append(number)
    found = [
        Paragraph(f"{_named_runs(runs, numbers)}: {text}", "warning")
        for text, numbers in affected.items()
    ]
    return Section("problems", "What went wrong", found or [Paragraph("No problems were found.")])


def _named_runs(runs: Sequence[LoadedRun], numbers: Sequence[int]) -> str:
    """Name runs in a sentence: `3, ridge on digits, seed 0`, `Runs 3, 4 and 7`, `All runs`."""
    if len(numbers) == 1:
        return f"{numbers[0]}, {runs[numbers[0] - 1].title}"
    if len(numbers) == len(runs):
        return "All runs"
    return f"Runs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _commands(runs: Sequence[LoadedRun]) -> Section:
    rows: list[Row] = []
    for number, run in enumerate(runs, 1):
        command, env = run.record.command, run.record.environment
        commit, changed, _ = ((env.commit if env else None) or MISSING).partition(CHANGES)
        rows.append(
            [
                number_cell(number),
                run.title,
                command_line(command) if command else MISSING,
                env.sodap if env else MISSING,
                commit[:12] + changed,
                (env.gpu or env.processor) if env else MISSING,
            ]
        )
    heads = ["Run", "Title", "Command", "sodap", "Commit", "Machine"]
    table = Table("Command of each run", heads, rows, sortable=True, tags=_tags(runs))
    return Section("origin", "How to reproduce", [table])


def scores_sentence(runs: Sequence[LoadedRun]) -> str:
    """Final average, constant answer and forgetting of a few runs of different methods."""
    stages = len(runs[0].stages)
    verdict = runs[0].record.verdict
    assert verdict is not None
    text = [
        f"Final average accuracy after {plural(stages, 'domain')}: "
        f"{_listed(runs, 'final_average')}. Always answering '{verdict.answer}' gives "
        f"{format_score(verdict.constant)}."
    ]
    if stages > 1:
        text.append(f"Average forgetting (AvgF): {_listed(runs, 'average_forgetting')}.")
    else:
        text.append("After one domain there is nothing to forget yet.")
    text.append(f"Average accuracy over the stages (AvgACC): {_listed(runs, 'average_accuracy')}.")
    if len(runs) > 1:
        text.append("Each method ran with one seed, so the noise between seeds is unknown.")
    return " ".join(text)


def _listed(runs: Sequence[LoadedRun], key: str) -> str:
    scores = [format_score(METRICS[key].of(run.record)) for run in runs]
    if len(runs) == 1:
        return scores[0]
    return ", ".join(f"{run.name} {score}" for run, score in zip(runs, scores, strict=True))
