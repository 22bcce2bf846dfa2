"""The text of docs/results.md, of the effects in docs/methods.md, and of results/summary.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sodap.evaluation import PairedDifference, SeedMean, holm
from sodap.formats import MISSING, format_score
from sodap.grids.search import next_candidate
from sodap.grids.variants import read_entry
from sodap.reporting import METRICS, Result, StreamTable, as_markdown, conclusion
from sodap.reporting.tables.comparability import differing_settings, mixed_rows
from sodap.reporting.tables.formats import markdown_table
from sodap.reporting.tables.stream_table import CONSTANT
from sodap.reporting.tables.table import Cell, difference_cell
from sodap.runs.record import RunRecord, SearchInfo
from tools import results

BEGIN, END = "<!-- effects: written by tools.results -->", "<!-- end of effects -->"
"""Lines of docs/methods.md around the text of `effects`."""
COMPARED = ("average_accuracy", "average_forgetting", "final_average", "backward_transfer")
SUMMARISED = COMPARED[:3]


# ---------------------------------------------------------------------- results/summary.json


def summary() -> dict[str, Any]:
    """Stream -> method -> metric -> mean, sd and Student's 95 % interval over seeds."""
    content: dict[str, Any] = {}
    for stream, table in results.tables().items():
        rows: dict[str, Any] = {
            method: {"seeds": len(table.seeds(method))}
            | {key: _numbers(table.mean(method, key)) for key in SUMMARISED}
            for method in table.methods
        }
        rows[CONSTANT] = {
            key: {"mean": round(table.constant[key] or 0.0, 6), "sd": None, "interval": None}
            for key in SUMMARISED
        }
        content[stream] = rows
    return content


def _numbers(found: SeedMean | None) -> dict[str, Any] | None:
    if found is None:
        return None
    ends = [round(end, 6) for end in (found.low, found.high) if end is not None]
    return {
        "mean": round(found.mean, 6),
        "sd": None if found.sd is None else round(found.sd, 6),
        "interval": ends or None,
    }


# ---------------------------------------------------------------------- docs/results.md


def page() -> str:
    lines = [
        "# Results",
        "",
        "Written by `python -m tools.results write` from the records under `results/`. Each",
        "record has the command, settings, seed, commit and machine of its run;",
        "`results/summary.json` has the means. Numbers are of the test splits, mean ± standard",
        "deviation over seeds; the best of a column is bold. No setting was chosen on a test",
        "split. The embedded digits themselves were made harder once, after a first score on",
        "them (see [their model card](micro-vit.md)).",
        "",
        "The settings of every method were chosen by the same rule, on validation images of the",
        "first two domains. The defaults of Residual SODAP were compared before on validation",
        "images of all domains (see the end of this page). One of them, to freeze what old and",
        "new prompts share, comes from a prototype on similar streams whose splits are not",
        "recorded.",
        "",
        edge_of_search(),
        "",
        *several_commits(),
        "`final` and `macro-F1` are means over all domains after the last stage. `trainable` is",
        "the largest number of trained parameters in a stage, `stored` the bytes kept about",
        "past images after the last. `constant` always gives the same answer, the one with the",
        "highest `final`.",
        "",
        "Differences are paired by seed, with a 95 % interval of Student's t over seeds. Records",
        "have no predictions for single images, so the intervals are about other seeds and not",
        "about other test images. A difference is bold, and called more than the noise between",
        "seeds, if this interval excludes 0 and p < 0.05: Student's paired t test, corrected for",
        "all differences of the column (Holm). `ridge`, `slda` and `ncm` use no random numbers,",
        "so there is no noise between them and nothing is bold.",
        "",
        "The test splits of the real streams are small (the third domain of `open-dr` has 27",
        "images), and so is DeiT-Tiny: these numbers rank methods and promise nothing for a",
        "clinic. What the paper's own numbers can bear is in [paper.md](paper.md).",
    ]
    for stream, table in results.tables().items():
        lines += section(stream, table)
    return "\n".join([*lines, *searched()]) + "\n"


def edge_of_search() -> str:
    """How many chosen learning rates are the lowest or highest that was tried."""
    found = {stream: results.searches_of(stream) for stream in results.tables()}
    ends = {
        stream: [f"`{method}`" for method, search in searches.items() if _at_edge(search)]
        for stream, searches in found.items()
    }
    named = "; ".join(f"{stream}: {', '.join(some)}" for stream, some in ends.items() if some)
    if not named:
        return "No chosen learning rate is the lowest or highest that was tried."
    count, total = (sum(map(len, each.values())) for each in (ends, found))
    return (
        f"{count} of {total} chosen learning rates are the lowest or highest that was tried, so a "
        f"better one may lie beyond ({named})."
    )


def _at_edge(search: SearchInfo) -> bool:
    tried = search.candidates
    return (
        next_candidate([each.setting for each in tried], [each.score for each in tried]) is not None
    )


def several_commits() -> list[str]:
    rows = list(mixed_rows(map(Result.of, results.load_plain())))
    return [f"Not all seeds ran the same commit: {', '.join(rows)}.", ""] if rows else []


def section(stream: str, table: StreamTable) -> list[str]:
    """The results of one stream."""
    records = [each for each in results.load_plain() if each.stream.name == stream]
    config = records[0].config
    machines = sorted({env.gpu or env.processor for each in records if (env := each.environment)})
    trained = [each for each in records if any(stage.epochs for stage in each.stages)]
    epochs = sorted({each.config.training.epochs for each in trained})
    jobs = sorted({each.jobs for each in records})
    speeds = ""
    if jobs != [1] or len(machines) > 1:
        speeds = f", {' or '.join(map(str, jobs))} runs at a time, so speeds are not comparable"
    lines = [
        "",
        f"## {stream}",
        "",
        f"{len(records[0].stream.classes)} classes, {' → '.join(table.domains)}. Backbone "
        f"{table.backbone}, at most {' or '.join(map(str, epochs)) or 'no'} epochs per stage, "
        f"batch {config.training.batch_size}; {' and '.join(machines)}{speeds}.",
        "",
        conclusion(table),
        "",
        as_markdown(table, list(METRICS.values()), None).rstrip(),
    ]
    reference = table.reference()  # the text above is about the same differences
    if reference is not None:
        lines += ["", differences(table, reference)]
    return [*lines, *chosen(stream), "", "Commands:", "", *commands(records)]


def differences(table: StreamTable, reference: str) -> str:
    """Every other method minus the reference."""
    families = [table.family(reference, key) for key in COMPARED]
    rows = [
        [Cell(f"`{other}`"), *(difference_cell(family[other]) for family in families)]
        for other in families[0]
    ]
    heads = [f"minus `{reference}`", *(METRICS[key].title for key in COMPARED)]
    return markdown_table(heads, rows).rstrip()


def chosen(stream: str) -> list[str]:
    """What each method's search compared, and what it chose."""
    searches = results.searches_of(stream)
    if not searches:
        return []
    rules: dict[str, list[str]] = {}
    for method, search in searches.items():
        rules.setdefault(_rule(search), []).append(f"`{method}`")
    lines = ["", "Settings; methods that are not named have nothing to choose."]
    for rule, methods in rules.items():
        names = f"{', '.join(methods)}: " if len(rules) > 1 else ""
        lines += ["", f"{names}{rule}"]
    lines += ["", "| method | candidates | chosen |", "|---|---|---|"]
    for method, search in searches.items():
        tried = ", ".join(
            f"{_text(each.setting)}: " + ("broke" if each.score is None else f"{each.score:.3f}")
            for each in search.candidates
        )
        lines.append(f"| `{method}` | {tried} | {_text(search.chosen)} |")
    return lines


def _rule(search: SearchInfo) -> str:
    more = f", and {search.beyond} more if the best learning rate was the lowest or highest"
    return (
        f"Chosen by {search.what} (seed {search.seed}), from at most {search.budget} "
        f"candidates per method{more if search.beyond else ''}."
    )


def _text(setting: Mapping[str, Any]) -> str:
    return " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in setting.items()
    )


def commands(records: Sequence[RunRecord]) -> list[str]:
    """Each command once, with the methods whose first seed it ran."""
    first: dict[str, RunRecord] = {}
    for record in sorted(records, key=lambda each: each.config.seed):
        first.setdefault(record.config.method, record)
    found: dict[str, list[str]] = {}
    for method, record in sorted(first.items()):
        found.setdefault(" ".join(record.command), []).append(method)
    return [f"- `{command}` ({', '.join(methods)})" for command, methods in found.items()]


def searched() -> list[str]:
    """Settings that were compared on validation images."""
    files = sorted((results.RESULTS / "search").glob("*.json"))
    if not files:
        return []
    lines = [
        "",
        "## Settings compared on validation images",
        "",
        "How the defaults were chosen; the records are in `results/search/`.",
        "The validation images of each domain take the place of its test images. With two or",
        "three seeds, differences below about 0.01 are noise.",
    ]
    for file in files:
        content = json.loads(file.read_text("utf-8"))
        runs = [row for search in content["searches"] for row in search["runs"]]
        rows = []
        for variant in dict.fromkeys(row["variant"] for row in runs):
            mine = [row for row in runs if row["variant"] == variant]
            scores = [[row[metric] for row in mine] for metric in SUMMARISED]
            cells = [f"{np.mean(each):.3f} ± {np.std(each, ddof=1):.3f}" for each in scores]
            name = f"`{variant.replace(',', ' ')}`"
            rows.append([Cell(text) for text in (name, str(len(mine)), *cells)])
        heads = ["settings", "seeds", *(METRICS[key].title for key in SUMMARISED)]
        table = markdown_table(heads, rows).rstrip()
        lines += ["", f"### {file.stem}", "", content["note"], "", table]
    return lines


# ---------------------------------------------------------------------- effects in docs/methods.md


def with_effects(text: str) -> str:
    """docs/methods.md with the effects of the present results."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{effects()}\n{END}{after}"


def effects() -> str:
    """What the option of each variant changes, over the seeds that variant and method share."""
    _check_variants()
    pairs = [
        (table, variant, method)
        for table in results.tables(results.load()).values()
        for variant, method in sorted(table.variants.items())
        if method in table.scores
    ]
    if not pairs:
        return "The effects have not been measured yet."
    columns = [
        holm([table.difference(variant, method, key) for table, variant, method in pairs])
        for key in COMPARED[:2]
    ]
    rows = []
    for (table, variant, method), *found in zip(pairs, *columns, strict=True):
        mean = table.mean(variant, COMPARED[0])
        seeds = str(len(table.common_seeds(variant, method)))
        accuracy = format_score(mean.mean if mean else None)
        cells = [table.stream, f"`{variant}`", seeds, accuracy, *map(_in_points, found)]
        rows.append(f"| {' | '.join(cells)} |")
    heads = ["stream", "variant", "seeds", "AvgACC", "change in AvgACC", "change in AvgF"]
    return "\n".join(
        [
            f"| {' | '.join(heads)} |",
            f"|---|---|{'--:|' * (len(heads) - 2)}",
            *rows,
            "",
            "AvgACC is that of the variant, with the settings chosen for the unchanged method.",
            "Changes are in points (hundredths), variant minus method, paired by seed, with a",
            "95 % interval over seeds; bold if they are more than the noise between seeds,",
            "corrected for all changes of the column (see [results.md](results.md)). A lower AvgF",
            "is less forgetting.",
            *_other_commits(),
        ]
    )


def _in_points(found: PairedDifference | None) -> str:
    if found is None:
        return MISSING
    text = f"{100 * found.mean:+.1f}"
    if found.low is not None and found.high is not None:
        text += f" ({100 * found.low:+.1f}, {100 * found.high:+.1f})"
    return f"**{text}**" if found.significant else text


def _other_commits() -> list[str]:
    """Variants that ran another commit than their method, so that the code may matter too."""
    ran: dict[tuple[str, str], set[str | None]] = {}
    for record in results.load():
        commit = record.environment.commit if record.environment else None
        ran.setdefault((record.config.stream, record.row), set()).add(commit)
    found = [
        f"`{row}` on {stream}"
        for (stream, row), commits in sorted(ran.items())
        if commits != ran.get((stream, read_entry(row).method), commits)
    ]
    return ["", f"Ran another commit than its method: {', '.join(found)}."] if found else []


def _check_variants() -> None:
    """Fail if a variant differs from its method in more than its name says and the commit."""
    plain = {(r.config.stream, r.config.method): r for r in results.load_plain()}
    for record in results.load():
        config = record.config
        method = plain.get((config.stream, config.method), record)
        named = {change.partition("=")[0] for change in read_entry(record.row).changes}
        more = [
            key
            for key in differing_settings(method, record)
            if key != results.COMMIT
            and not any(key == name or key.endswith(f".{name}") for name in named)
        ]
        if more:
            raise SystemExit(
                f"{record.row} on {config.stream} differs from {config.method} in "
                f"{', '.join(more)} as well; run both again"
            )
