"""Where the numbers come from, and what went wrong on the way."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from sodap.formats import plural
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Code, Facts, Prose, Section


def origin_section(run: ShownRun) -> Section:
    return Section("origin", "How to get this again", list(_origin(run)))


def troubles_section(run: ShownRun) -> Section:
    found = troubles(run)
    blocks: list[Block] = [Prose(words, "warning") for words in found]
    if run.trace:
        blocks.append(Code("Traceback", run.trace, folded=True))
    return Section("troubles", "What went wrong", blocks or [Prose("Nothing was reported.")])


def troubles(run: ShownRun) -> list[str]:
    """Everything that a reader should know before believing the numbers."""
    found = []
    done, all_of_them = len(run.stages), learned_domains(run)
    if run.status != "finished":
        why = f": {run.record['note']}" if run.record.get("note") else ""
        so_far = f"{done} of {plural(all_of_them, 'domain')}" if all_of_them else "no domain"
        found.append(f"The run is not complete ({run.status}{why}). It has learned {so_far}.")
        if run.status == "running":
            found.append("It may be running still, or it was killed; --resume goes on with it.")
    for env in run.record.get("earlier_environments", ()):
        other = f"sodap {env['sodap']}, commit {env.get('commit') or 'unknown'}"
        found.append(f"It was learned in part with other code or packages ({other}).")
    found += [
        f"Splits, {check.what}: {check.words}." for check in run.checks if check.good is False
    ]
    found += list(run.record.get("stream", {}).get("notes", ()))
    found += [f"{words}." for words in run.troubles]  # as they are: many begin with a path
    return found


def learned_domains(run: ShownRun) -> int:
    """How many domains are there to learn: those with training images."""
    domains = run.record["stream"]["domains"]
    return sum(1 for d in domains if "counts" not in d or sum(d["counts"]["train"]))


def command_line(command: Sequence[str]) -> str:
    """As it can be typed again; where the program lies is not part of it."""
    program, *rest = command
    return shlex.join([Path(program).name, *rest])


def _origin(run: ShownRun) -> Iterator[Block]:
    record = run.record
    if record.get("command"):
        yield Code("Command", command_line(record["command"]))
    else:
        yield Prose("Started from Python, or the record does not say how.")
    pairs = [("Seed", str(run.seed)), ("Status", run.status)]
    if backbone := record.get("backbone"):
        weights = backbone.get("weights", "not named")
        words = f"{backbone['name']}, weights {weights}, SHA-256 {backbone['sha256']}"
        pairs.append(("Backbone", words))
    if env := record.get("environment"):
        commit = f", commit {env['commit']}" if env.get("commit") else ""
        packages = ", ".join(f"{name} {v}" for name, v in env["packages"].items() if v)
        gpu = f", {env['gpu']}" if env.get("gpu") else ""
        threads = plural(env["threads"], "thread")
        pairs += [
            ("sodap", f"{env['sodap']}{commit}"),
            ("Python", env["python"]),
            ("Packages", packages),
            ("Computer", f"{env['system']}, {env['processor']}, {threads}{gpu}"),
        ]
    if search := record.get("search"):
        chosen = ", ".join(f"{key}={value}" for key, value in search["chosen"].items())
        pairs.append(("Chosen before", f"{chosen}, by {search.get('what', 'a search')}"))
    yield Facts(pairs)
    config = yaml.safe_dump(dict(record["config"]), sort_keys=False)
    yield Code("Configuration, with every default", config, folded=True)
