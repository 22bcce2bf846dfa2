"""`sodap demo`: learn the embedded stream with two methods, and compare them in a report."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from sodap.cli.progress import RunProgress
from sodap.cli.result import show_result
from sodap.formats import format_duration
from sodap.reporting import load_runs, write_report
from sodap.reporting.pages.report import page_of
from sodap.runs import load_config, run
from sodap.streams import load_stream

RECIPES = ("demo", "demo-sequential")
"""The paper's method, and the same head trained without any protection against forgetting."""


def run_demo(console: Console, out: Path, seed: int, changes: Sequence[str] = ()) -> None:
    """Run both recipes, with `changes` (key=value), and write OUT/index.html."""
    began = time.perf_counter()
    configs = [load_config(recipe, [*changes, f"seed={seed}"]) for recipe in RECIPES]
    stream = load_stream(configs[0].stream)
    domains = " -> ".join(domain.name for domain in stream.domains)
    console.print(f"Ten digits, {len(stream)} domains: {domains}", highlight=False)
    records = {}
    for config in configs:
        folder = out / config.method
        if (folder / "config.json").is_file():  # the run of an earlier demo
            shutil.rmtree(folder)
        console.print(f"\n[bold]{config.method}[/]")
        with RunProgress(console) as bars:
            record = run(config, folder, command=sys.argv, callback=bars, stream=stream)
        records[config.method] = record
    for method, record in records.items():
        console.print()
        show_result(console, record, method)
    runs = load_runs([out / method for method in records])
    runs = [replace(each, stream=stream, no_stream="") for each in runs]
    single = page_of(runs[0])
    assert single is not None
    write_report(runs[:1], single.parent)
    page = write_report(runs, out)
    seconds = format_duration(time.perf_counter() - began)
    console.print(f"\nDone in {seconds}. Report: {page}", highlight=False)
