"""`sodap run`: learn a stream with one method."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from sodap.runs.config import check_names, load_config


def run_recipe(
    console: Console,
    recipe: str,
    changes: Sequence[str],
    *,
    out: Path | None,
    resume: bool,
    logs: Sequence[str],
) -> None:
    check_names(recipe, changes)  # before torch is imported, which takes seconds
    config = load_config(recipe, changes)
    name = f"{Path(config.stream).resolve().stem}-{config.method}-s{config.seed}"
    folder = out or Path("runs") / name

    from sodap.cli.progress import RunProgress
    from sodap.cli.result import show_result
    from sodap.runs.callback import Callbacks
    from sodap.runs.runner import check_folder, run
    from sodap.runs.tracking import Tracker

    trackers = [Tracker(kind, config, folder) for kind in dict.fromkeys(logs)]
    if resume and check_folder(config, folder, resume=True) is not None:
        console.print(f"{folder} is finished already; nothing is left to do", markup=False)
    elif resume and not (folder / "config.json").exists():
        console.print(f"there is no run in {folder} to resume; it starts now", markup=False)
    try:
        with RunProgress(console) as progress:
            record = run(
                config,
                folder,
                resume=resume,
                command=sys.argv,
                callback=Callbacks(progress, *trackers),
            )
    except KeyboardInterrupt:
        print("sodap: interrupted; continue with the same command and --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    show_result(console, record, config.method)
    console.print(f"All files of this run: {folder}", markup=False)
