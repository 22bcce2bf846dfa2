"""`sodap run`: learn a stream with one method."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from sodap.cli.loading import loading
from sodap.formats import plural
from sodap.runs.config import check_names, load_config, recipe_names


def run_recipe(
    console: Console,
    recipe: str,
    changes: Sequence[str],
    *,
    out: Path | None,
    resume: bool,
    extend: bool,
    logs: Sequence[str],
) -> None:
    check_names(recipe, changes)  # before torch is imported, which takes seconds
    with loading(console):
        config = load_config(recipe, changes)

        from sodap.backbones import fetch_weights
        from sodap.cli.probe import warn_of_inert_parts
        from sodap.cli.progress import RunProgress
        from sodap.cli.result import show_result
        from sodap.runs.callback import Callbacks
        from sodap.runs.extension import extend as learn_new_domains
        from sodap.runs.runner import check_folder, run
        from sodap.runs.stream import new_domains
        from sodap.runs.tracking import Tracker

    name = f"{Path(config.stream).resolve().stem}-{config.method}-s{config.seed}"
    folder = out or Path("runs") / name

    def trackers() -> list[Tracker]:
        return [Tracker(kind, config, folder) for kind in dict.fromkeys(logs)]

    begun = trackers()  # before anything is learned, because a tracker may be missing
    resume = resume or extend
    finished = check_folder(config, folder, resume=resume)
    new = new_domains(config, folder) if resume else []
    state = _state(folder, finished is not None, new, extend=extend) if resume else None
    if state is not None:
        console.print(state, markup=False, highlight=False, soft_wrap=True)
    if finished is None:  # before the bars of a run, because a download has its own
        fetch_weights(
            config.backbone, config.weights, lambda line: console.print(line, soft_wrap=True)
        )
        named = any(change.startswith("stream=") for change in changes)
        if not named and recipe in recipe_names():  # a recipe of the user's own names its stream
            console.print(_unnamed(config.stream), soft_wrap=True, highlight=False)
    try:
        with RunProgress(console) as progress:
            callback = Callbacks(progress, *begun)
            record = run(config, folder, resume=resume, command=sys.argv, callback=callback)
        if extend and new:
            with RunProgress(console) as progress:
                callback = Callbacks(progress, *trackers())
                record = learn_new_domains(config, folder, command=sys.argv, callback=callback)
    except KeyboardInterrupt:
        print("sodap: interrupted; continue with the same command and --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    show_result(console, record, config.method)
    warn_of_inert_parts(folder)
    console.print(f"All files of this run: {folder}", markup=False)


def _state(folder: Path, finished: bool, new: Sequence[str], *, extend: bool) -> str | None:
    """What a resumed run finds: its state, and domains that were added since it began."""
    if not (folder / "config.json").exists():
        return f"there is no run in {folder} to resume; it starts now"
    if not new:
        return f"{folder} is finished already; nothing is left to do" if finished else None
    state = "is finished" if finished else "goes on"
    found = f"{folder} {state}; {plural(len(new), 'domain')} added since it began: {', '.join(new)}"
    if extend:
        return f"{found}; learned as {'the next stage' if len(new) == 1 else 'the next stages'}"
    return f"{found}; add --extend to this command to learn {'it' if len(new) == 1 else 'them'}"


def _unnamed(stream: str) -> str:
    """What a command without a stream is about to learn."""
    return (
        f"No stream is given, so this learns '{stream}', which comes with sodap; "
        f"for your own images add stream=FOLDER (see `sodap data list`)."
    )
