"""Keep runs as results, and write docs/results.md and the effects in docs/methods.md from them.

python -m tools.results keep runs/table1                 # into results/STREAM/METHOD-sSEED.json
python -m tools.results keep --commit HASH runs/table1   # for runs that knew no commit
python -m tools.results write                            # the two pages, and results/summary.json

`keep` takes folders of runs and single records. A run on a machine without git does not know which
commit it ran; whoever copied the code there does, and says so with --commit. What was kept before
of other methods stays as it is, searches too. All runs of a row must have one setting, else `write`
refuses; if they ran several commits, it says so. Variants (METHOD@OPTION) are kept beside the
methods and told in docs/methods.md alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sodap.evaluation import Spread
from sodap.grids.search import one_beyond
from sodap.grids.variants import read_entry
from sodap.reporting.tables.conclusion import verdict
from sodap.reporting.tables.formats import as_markdown, show, show_claim
from sodap.reporting.tables.significance import Claim, claims
from sodap.reporting.tables.stream_table import (
    CONSTANT,
    MAIN,
    METRICS,
    StreamTable,
    differing,
    find_records,
    make_tables,
    mixtures,
    row_of,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
SUMMARY = RESULTS / "summary.json"
PAGE = ROOT / "docs" / "results.md"
METHODS = ROOT / "docs" / "methods.md"
BEGIN, END = "<!-- effects: written by tools.results -->", "<!-- end of effects -->"
"""Between these lines of `METHODS` stands what `effects` says."""

LIMIT = 8_000
"""Bytes of a kept record: small enough to be read by a person and kept for good."""

COMPARED = ("average_accuracy", "average_forgetting", "final_average", "backward_transfer")
SUMMARISED = ("average_accuracy", "average_forgetting", "final_average")
COMMIT = "commit"
"""In this alone the runs of a row may differ: a grid can go on after a commit. It is told."""
REFERENCE = "rp-ridge"
"""Second moments of random features, in closed form: what anything trained should beat."""


# ---------------------------------------------------------------------- keeping


def kept(record: Mapping[str, Any], commit: str | None = None) -> dict[str, Any]:
    """What of a record makes it a result: where it comes from, and what was measured."""
    if record["status"] != "finished":
        raise SystemExit(f"a run that is {record['status']} is no result")
    if record.get("earlier_environments"):
        raise SystemExit("a run that went on with other code is no result")
    command = [Path(record["command"][0]).name, *record["command"][1:]]
    return {
        "command": command,
        **({"variant": record["variant"]} if record.get("variant") else {}),
        "config": record["config"],
        "environment": _with_commit(record["environment"], commit),
        "backbone": {k: record["backbone"][k] for k in ("name", "image_size", "sha256")},
        "stream": record["stream"],
        "jobs": record.get("jobs", 1),
        "throughput": record.get("throughput", {}),
        "R": {name: record["R"][name] for name in ("accuracy", "macro_f1")},
        "stages": [
            {
                "domain": stage["domain"],
                "epochs": stage["epochs"],
                "pool": stage["ended"].get("pool"),
                "drift": stage["begun"].get("drift", {}).get("score"),
                "seconds": round(stage["seconds"], 1),
                "peak_gpu_bytes": stage.get("peak_gpu_bytes"),
                "trainable_parameters": stage["trainable_parameters"],
                "stored_bytes": sum(asset["bytes"] for asset in stage["stored"]),
            }
            for stage in record["stages"]
        ],
    }


def _with_commit(environment: Mapping[str, Any], given: str | None) -> dict[str, Any]:
    """The environment with a commit: its own, or the one that was given and is marked as such."""
    own = environment["commit"]
    if own is None and given is None:
        raise SystemExit("a run knows no commit; say with --commit which code it ran")
    if own is not None:
        if given not in (None, own):
            raise SystemExit(f"a run was of commit {own}, not of {given}")
        return dict(environment)
    if not re.fullmatch(r"[0-9a-f]{40}", given or ""):
        raise SystemExit(f"'{given}' is not the full hash of a commit")
    return {**environment, "commit": given, "commit_given": True}


def keep(places: Sequence[str], commit: str | None = None) -> list[Path]:
    """Write the results of the runs at `places`, and once a method the search behind them."""
    records, unfinished = find_records([Path(place) for place in places])
    if unfinished:
        print(f"{unfinished} runs are not finished and left out", file=sys.stderr)
    files = []
    searches: dict[Path, dict[str, Any]] = {}
    for record in records:
        config = record["config"]
        folder = RESULTS / config["stream"]
        text = dense(kept(record, commit))
        if len(text.encode()) > LIMIT:
            raise SystemExit(f"the result of {row_of(record)} takes more than {LIMIT} bytes")
        files.append(folder / f"{row_of(record)}-s{config['seed']}.json")
        write(files[-1], text)
        found = searches.setdefault(folder / "search.json", {})
        if found.setdefault(config["method"], record.get("search")) != record.get("search"):
            raise SystemExit(f"runs of {config['method']} followed two different searches")
    for file, found in searches.items():
        before = json.loads(file.read_text("utf-8")) if file.exists() else {}
        known = {method: search for method, search in (before | found).items() if search}
        if known:
            write(file, dense(dict(sorted(known.items()))))
    return files


def dense(content: Mapping[str, Any]) -> str:
    """JSON with one line for each list of numbers or words."""
    text = json.dumps(content, indent=1) + "\n"
    plain = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")
    return plain.sub(lambda found: "[" + re.sub(r",\n\s*", ", ", found[1]) + "]", text)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


# ---------------------------------------------------------------------- reading


def measured() -> list[Path]:
    """The files that hold a run's result; those of searches hold comparisons of settings."""
    return sorted(
        file
        for file in RESULTS.glob("*/*.json")
        if file.parent.name != "search" and file.name != "search.json"
    )


def load() -> list[dict[str, Any]]:
    return [json.loads(file.read_text("utf-8")) for file in measured()]


def load_plain() -> list[dict[str, Any]]:
    """Without variants: what is ranked."""
    return [record for record in load() if not record.get("variant")]


def tables(records: Sequence[Mapping[str, Any]] | None = None) -> dict[str, StreamTable]:
    """One for each stream, of `records` or of all but variants; a stream has one backbone."""
    records = load_plain() if records is None else records
    for row, keys in mixtures(records).items():
        if keys != [COMMIT]:
            raise SystemExit(f"the runs of {row} differ in {', '.join(keys)}; keep one setting")
    made = make_tables(records)
    found = {table.stream: table for table in made}
    if len(found) < len(made):
        raise SystemExit("results of one stream were kept with two backbones")
    return found


# ---------------------------------------------------------------------- writing


def summary() -> dict[str, Any]:
    """Stream -> method -> metric -> mean, sd and Student's 95 % interval over seeds."""
    content: dict[str, Any] = {}
    for stream, table in tables().items():
        rows: dict[str, Any] = {
            method: {"seeds": len(table.seeds(method))}
            | {key: _numbers(table.spread(method, key)) for key in SUMMARISED}
            for method in table.methods
        }
        rows[CONSTANT] = {
            key: {"mean": round(table.constant[key] or 0.0, 6), "sd": None, "interval": None}
            for key in SUMMARISED
        }
        content[stream] = rows
    return content


def _numbers(found: Spread | None) -> dict[str, Any] | None:
    if found is None:
        return None
    ends = [found.low, found.high]
    return {
        "mean": round(found.mean, 6),
        "sd": None if found.sd is None else round(found.sd, 6),
        "interval": None
        if found.low is None
        else [round(end, 6) for end in ends if end is not None],
    }


def differences(table: StreamTable, first: str) -> list[str]:
    """`first` minus every other method, paired by seed."""
    titles = [METRICS[key].title for key in COMPARED]
    lines = [f"| `{first}` minus | {' | '.join(titles)} |", f"|---|{'--:|' * len(COMPARED)}"]
    others = [method for method in table.methods if method != first]
    columns = [claims([(table, first, other, key) for other in others]) for key in COMPARED]
    for other, *found in zip(others, *columns, strict=True):
        cells = [f"**{text}**" if bold else text for text, bold in map(show_claim, found)]
        lines.append(f"| `{other}` | {' | '.join(cells)} |")
    return lines


def firsts(table: StreamTable) -> list[str]:
    """Whom all others are compared with: the paper's method, the reference, and the winner."""
    wanted = [MAIN, REFERENCE, *table.contenders[:1]]
    return list(dict.fromkeys(method for method in wanted if method in table.methods))


def chosen(stream: str) -> list[str]:
    """What each method's search compared, and what it chose."""
    searches = searches_of(stream)
    if not searches:
        return []
    rules: dict[str, list[str]] = {}
    for method, search in searches.items():
        rules.setdefault(rule_of(search), []).append(f"`{method}`")
    lines = ["", "Settings; a method that is not named has nothing to choose."]
    for rule, methods in rules.items():
        whose = f"{', '.join(methods)}: " if len(rules) > 1 else ""
        lines += ["", f"{whose}{rule}"]
    lines += ["", "| method | candidates | chosen |", "|---|---|---|"]
    for method, search in searches.items():
        tried = ", ".join(
            f"{_words(each['setting'])}: "
            + ("broke" if each["score"] is None else f"{each['score']:.3f}")
            for each in search["candidates"]
        )
        lines.append(f"| `{method}` | {tried} | {_words(search['chosen'])} |")
    return lines


def searches_of(stream: str) -> dict[str, Any]:
    file = RESULTS / stream / "search.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return found


def rule_of(search: Mapping[str, Any]) -> str:
    """By what, and among how many, a method's setting was chosen."""
    more = search.get("beyond", 0)
    further = f", and {more} more where the best learning rate was an end of those tried"
    return (
        f"Chosen by {search['what']} (seed {search['seed']}), from at most {search['budget']} "
        f"candidates a method{further if more else ''}."
    )


def of_several_commits() -> list[str]:
    rows = list(mixtures(load_plain()))
    return [f"Not all seeds ran the same commit: {', '.join(rows)}.", ""] if rows else []


def at_the_edge() -> str:
    """How many chosen learning rates are still an end of those tried; a better one may lie on."""
    searched = {stream: searches_of(stream) for stream in tables()}
    ends = {
        stream: [f"`{method}`" for method, search in found.items() if _open_end(search)]
        for stream, found in searched.items()
    }
    named = "; ".join(f"{stream}: {', '.join(some)}" for stream, some in ends.items() if some)
    if not named:
        return "No chosen learning rate is an end of those tried."
    count, total = (sum(map(len, each.values())) for each in (ends, searched))
    return (
        f"{count} of {total} chosen learning rates are an end of those tried, and a better one "
        f"may lie beyond ({named})."
    )


def _open_end(search: Mapping[str, Any]) -> bool:
    tried = search["candidates"]
    settings, scores = ([each[key] for each in tried] for key in ("setting", "score"))
    return one_beyond(settings, scores) is not None


def _words(setting: Mapping[str, Any]) -> str:
    return " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in setting.items()
    )


def commands(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each command once, with the methods whose first seed it ran."""
    found: dict[str, list[str]] = {}
    for record in records:
        config = record["config"]
        if config["seed"] == min(
            each["config"]["seed"]
            for each in records
            if each["config"]["method"] == config["method"]
        ):
            found.setdefault(" ".join(record["command"]), []).append(config["method"])
    return [f"- `{command}` ({', '.join(methods)})" for command, methods in found.items()]


def section(stream: str, table: StreamTable) -> list[str]:
    records = [each for each in load_plain() if each["stream"]["name"] == stream]
    some = records[0]
    training = some["config"]["training"]
    machines = sorted({e["environment"]["gpu"] or e["environment"]["processor"] for e in records})
    epochs = sorted({each["config"]["training"]["epochs"] for each in records if _trained(each)})
    jobs = sorted({each.get("jobs", 1) for each in records})
    alone = jobs == [1] and len(machines) == 1
    lines = [
        "",
        f"## {stream}",
        "",
        f"{len(some['stream']['classes'])} classes, {' → '.join(table.domains)}. Backbone "
        f"{table.backbone}, at most {' or '.join(map(str, epochs)) or 'no'} epochs a stage, "
        f"batch {training['batch_size']}; {' and '.join(machines)}"
        + (
            "."
            if alone
            else f", {' or '.join(map(str, jobs))} runs at a time: no speeds to compare."
        ),
        "",
        verdict(table),
        "",
        as_markdown(table, list(METRICS.values()), None).rstrip(),
    ]
    for first in firsts(table):
        lines += ["", *differences(table, first)]
    lines += chosen(stream)
    return [*lines, "", "Commands:", "", *commands(records)]


def _trained(record: Mapping[str, Any]) -> bool:
    """Whether it had epochs at all; a method in closed form has none."""
    return any(stage["epochs"] for stage in record["stages"])


def searched() -> list[str]:
    """What was compared on validation images, and what it showed."""
    files = sorted((RESULTS / "search").glob("*.json"))
    if not files:
        return []
    lines = [
        "",
        "## Settings compared on validation images",
        "",
        "How the defaults were chosen; the records are in `results/search/`.",
        "Each domain's validation images stand in for its test images here. Two or three seeds are",
        "few: differences below about 0.01 are noise.",
    ]
    for file in files:
        content = json.loads(file.read_text("utf-8"))
        rows = [row for search in content["searches"] for row in search["runs"]]
        lines += [
            "",
            f"### {file.stem}",
            "",
            content["note"],
            "",
            "| settings | seeds | AvgACC | AvgF | final |",
            "|---|---|---|---|---|",
        ]
        for variant in dict.fromkeys(row["variant"] for row in rows):
            mine = [row for row in rows if row["variant"] == variant]
            cells = []
            for metric in ("average_accuracy", "average_forgetting", "final_average"):
                numbers = [row[metric] for row in mine]
                cells.append(f"{np.mean(numbers):.3f} ± {np.std(numbers, ddof=1):.3f}")
            shown = variant.replace(",", " ")
            lines.append(f"| `{shown}` | {len(mine)} | {' | '.join(cells)} |")
    return lines


def page() -> str:
    lines = [
        "# Results",
        "",
        "Written by `python -m tools.results write` from the records under `results/`. Each",
        "record holds the command, the settings, the seed, the commit and the machine of its run;",
        "`results/summary.json` holds the means. Numbers are of the test splits, mean ± standard",
        "deviation over seeds; the best of a column is bold. No setting was chosen on a test",
        "split; the embedded digits themselves were drawn harder once, after a first score on",
        "them (see [their model card](micro-vit.md)).",
        "",
        "Every method chose its settings by one rule, on validation images of the first two",
        "domains. Residual SODAP had more than that before: its defaults were compared on",
        "validation images of all domains (see the end of this page), and one of them, to freeze",
        "what old and new prompts share, comes from a prototype on similar streams whose splits",
        "are not recorded.",
        "",
        at_the_edge(),
        "",
        *of_several_commits(),
        "`final` and `macro-F1` are means over all domains after the last stage. `trainable` is",
        "the largest number of trained parameters in any stage, `stored` what is kept about past",
        "images after the last one. The row `constant` is no run: it always answers the most",
        "frequent class of the first domain's training images.",
        "",
        "Differences are paired by seed, with a 95 % bootstrap interval over seeds; of so few",
        "numbers no bootstrap can promise that much, and five seeds give about 92 %, three 75 %.",
        "Records hold no answers to single images, so the intervals speak of other seeds and not",
        "of other test images. A difference is bold, and called more than the noise between seeds,",
        "where this interval and Student's leave 0 out and p < 0.05: Student's p of the paired",
        "differences, corrected for all differences of the column (Holm). `ridge`, `slda` and",
        "`ncm` draw no random number: between them there is no noise, and nothing is bold.",
    ]
    for stream, table in tables().items():
        lines += section(stream, table)
    return "\n".join([*lines, *searched()]) + "\n"


# ---------------------------------------------------------------------- effects of options


def effects() -> str:
    """What each variant's option changes, from runs with the same seeds and the same settings."""
    _check_variants()
    pairs = [
        (table, variant, method)
        for table in tables(load()).values()
        for variant, method in sorted(table.variants.items())
        if method in table.numbers
    ]
    if not pairs:
        return "The effects have not been measured yet."
    columns = [claims([(*pair, key) for pair in pairs]) for key in COMPARED[:2]]
    rows = [
        [
            table.stream,
            f"`{variant}`",
            str(len(set(table.seeds(variant)) & set(table.seeds(method)))),
            show(mean_of(table, variant), METRICS[COMPARED[0]]),
            *map(_in_points, found),
        ]
        for (table, variant, method), *found in zip(pairs, *columns, strict=True)
    ]
    heads = ["stream", "variant", "seeds", "AvgACC", "change in AvgACC", "change in AvgF"]
    return "\n".join(
        [
            f"| {' | '.join(heads)} |",
            f"|---|---|{'--:|' * (len(heads) - 2)}",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            "AvgACC is that of the variant, with the settings chosen for the method as it is.",
            "Changes are in points (hundredths), variant minus method, paired by seed, with a 95 %",
            "interval over seeds; bold where they are more than the noise between seeds, corrected",
            "for all changes of the column (see [results.md](results.md)). Less AvgF is less",
            "forgetting.",
            *_of_another_commit(),
        ]
    )


def _of_another_commit() -> list[str]:
    """Code that changed between a method and its variant is part of the effect that is shown."""
    ran: dict[tuple[str, str], set[str]] = {}
    for record in load():
        place = (record["config"]["stream"], row_of(record))
        ran.setdefault(place, set()).add(record["environment"][COMMIT])
    apart = [
        f"`{row}` on {stream}"
        for (stream, row), commits in sorted(ran.items())
        if commits != ran.get((stream, read_entry(row).method), commits)
    ]
    if not apart:
        return []
    return ["", f"Ran another commit than its method: {', '.join(apart)}."]


def _check_variants() -> None:
    """A variant differs from its method in what its name says, or in the commit, which is told."""
    plain = {(r["config"]["stream"], r["config"]["method"]): r for r in load_plain()}
    for record in load():
        config, name = record["config"], row_of(record)
        like = plain.get((config["stream"], config["method"]), record)
        named = {change.partition("=")[0] for change in read_entry(name).changes}
        more = [
            key for key in differing(like, record) if key.split(".")[-1] not in {*named, COMMIT}
        ]
        if more:
            raise SystemExit(
                f"{name} on {config['stream']} differs from {config['method']} in "
                f"{', '.join(more)} as well; run both anew"
            )


def mean_of(table: StreamTable, row: str) -> float | None:
    found = table.spread(row, COMPARED[0])
    return found.mean if found else None


def _in_points(claim: Claim | None) -> str:
    if claim is None:
        return "–"
    gap = claim.gap
    text = f"{100 * gap.mean:+.1f}"
    if gap.low is not None and gap.high is not None:
        text += f" ({100 * gap.low:+.1f}, {100 * gap.high:+.1f})"
    return f"**{text}**" if claim.certain else text


def with_effects(text: str) -> str:
    """The page of methods, with the effects as they are now."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{effects()}\n{END}{after}"


def main() -> None:
    match sys.argv[1:]:
        case ["keep", "--commit", commit, *places] if places:
            list_files(keep(places, commit))
        case ["keep", *places] if places:
            list_files(keep(places))
        case ["write"]:
            write(SUMMARY, dense(summary()))
            write(PAGE, page())
            write(METHODS, with_effects(METHODS.read_text("utf-8")))
        case _:
            raise SystemExit(__doc__)


def list_files(files: Sequence[Path]) -> None:
    for file in files:
        print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
