"""Sections on the problems of a run, and on how to reproduce it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from sodap.formats import plural
from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.blocks import Block, CodeBlock, Definitions, Paragraph, Section
from sodap.runs.process import is_gone


def problems_section(run: LoadedRun) -> Section:
    blocks: list[Block] = [Paragraph(text, "warning") for text in problems(run)]
    if run.traceback:
        blocks.append(CodeBlock("Traceback", run.traceback, folded=True))
    return Section("problems", "What went wrong", blocks or [Paragraph("No problems were found.")])


def problems(run: LoadedRun) -> list[str]:
    """Everything to know before trusting the numbers of a run."""
    record = run.record
    found = []
    if not run.finished:
        reason = f": {record.note}" if record.note else ""
        total = len(record.stream.learned)
        learned = f"{len(run.stages)} of {plural(total, 'domain')}" if total else "no domain"
        found.append(f"The run is incomplete ({record.status}{reason}). It has learned {learned}.")
        if record.status == "running":
            ended = "It was killed" if is_gone(record.process) else "It still runs, or was killed"
            found.append(f"{ended}; continue it with the same command and --resume.")
    found += [
        f"Part of the run used other code or packages (sodap {environment.sodap}, commit "
        f"{environment.commit or 'unknown'})."
        for environment in record.earlier_environments
    ]
    found += [
        f"Check of the splits failed: {check.title} ({check.details})."
        for check in run.checks
        if check.passed is False
    ]
    if verdict := record.verdict:
        found += verdict.sentences
    return [*found, *record.stream.notes, *(f"{text}." for text in run.problems)]


def origin_section(run: LoadedRun) -> Section:
    return Section("origin", "How to reproduce", list(_origin(run)))


def command_line(command: Sequence[str]) -> str:
    """The command as it can be typed, without the folder of the program."""
    program, *arguments = command
    return shlex.join([Path(program).name, *arguments])


def _origin(run: LoadedRun) -> Iterator[Block]:
    record = run.record
    if record.command:
        yield CodeBlock("Command", command_line(record.command))
    else:
        yield Paragraph("The run was started from Python, or its command is unknown.")
    pairs = [("Seed", str(run.seed)), ("Status", record.status)]
    if backbone := record.backbone:
        weights = f"weights {backbone.weights or 'unknown'}, SHA-256 {backbone.sha256}"
        pairs.append(("Backbone", f"{backbone.name}, {weights}"))
    if env := record.environment:
        commit = f", commit {env.commit}" if env.commit else ""
        gpu = f", {env.gpu}" if env.gpu else ""
        machine = f"{env.system}, {env.processor}, {plural(env.threads, 'thread')}{gpu}"
        pairs += [
            ("sodap", f"{env.sodap}{commit}"),
            ("Python", env.python),
            ("Packages", ", ".join(f"{name} {v}" for name, v in env.packages.items() if v)),
            ("Machine", machine),
        ]
    if record.search:
        chosen = ", ".join(f"{key}={value}" for key, value in record.search.chosen.items())
        pairs.append(("Chosen by a search", f"{chosen} ({record.search.what})"))
    yield Definitions(pairs)
    config = yaml.safe_dump(record.config.model_dump(mode="json"), sort_keys=False)
    yield CodeBlock("Configuration, with all defaults", config, folded=True)
