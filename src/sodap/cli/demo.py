"""`sodap demo`: the embedded stream, learned twice, and one page that shows the difference."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from sodap.cli.progress import ProgressBars
from sodap.cli.tables import show_result
from sodap.reporting import demo_page
from sodap.runs import load_config, run
from sodap.storage import write_bytes
from sodap.streams import load_stream

RECIPES = ("demo", "demo-sequential")
"""The paper's method first, then the same head without anything to remember by."""


def run_demo(console: Console, out: Path, seed: int) -> None:
    began = time.perf_counter()
    stream = load_stream("digits")
    domains = " -> ".join(domain.name for domain in stream.domains)
    console.print(f"Ten digits, {len(stream)} domains: {domains}", highlight=False)
    results, records, logs = {}, {}, {}
    for recipe in RECIPES:
        config = load_config(recipe, [f"seed={seed}"])
        folder = out / config.method
        if (folder / "config.json").is_file():  # an earlier demo of ours, and nothing else
            shutil.rmtree(folder)
        console.print(f"\n[bold]{config.method}[/]")
        with ProgressBars(console) as bars:
            record = run(config, folder, command=sys.argv, callback=bars, stream=stream)
        records[config.method] = record.model_dump(mode="json")
        lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
        logs[config.method] = [json.loads(line) for line in lines]
        results[config.method] = record
    for method, record in results.items():
        console.print()
        show_result(console, record, method)
    page = out / "index.html"
    write_bytes(page, demo_page(stream, records, logs).encode())
    console.print(f"\nDone in {time.perf_counter() - began:.0f} s. The pictures: {page}")
