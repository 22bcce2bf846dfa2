"""`sodap watch`: a run as it goes on, read from the files that it writes meanwhile.

Nothing is asked of the run itself, so any number of people may watch it, from any machine that sees
its folder, and one that ended long ago can be looked at in the same way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.color import Color
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.style import Style
from rich.table import Table
from rich.text import Text

from sodap.drift import too_few
from sodap.errors import SodapError
from sodap.formats import format_duration
from sodap.storage import has_state, load_state, read_json

PAUSE_S = 0.5
SILENCE_S = 60.0
"""A run may be quiet for a minute, or for ten of its longest epochs, before that is remarkable."""

BARS = "▁▂▃▄▅▆▇█"
LOW, HIGH = (24, 34, 66), (120, 214, 255)
"""Colours of an accuracy of 0 and of 1."""


@dataclass(frozen=True)
class Snapshot:
    """What a run's folder says at one moment."""

    folder: Path
    record: Mapping[str, Any] | None
    """None before the run has written one."""
    rows: Sequence[Mapping[str, Any]] = ()
    """The log, a row an epoch."""
    losses: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Each loss over the steps of the last stage in the log."""
    silence: float = 0.0
    """Seconds since the record or the log was written."""

    @property
    def status(self) -> str:
        return "waiting" if self.record is None else str(self.record["status"])

    @property
    def ended(self) -> bool:
        return self.status in ("finished", "failed", "interrupted")


def watch_run(console: Console, folder: Path, *, once: bool) -> None:
    """Show the run until it ends; one frame where nobody looks on, and no waiting for a run."""
    now = take(folder)
    if once or not console.is_terminal:
        if not (folder / "config.json").is_file():
            raise SodapError(f"there is no run at {folder}")
        console.print(frame(now))
        return
    try:
        with Live(frame(now), console=console, auto_refresh=False) as live:
            while not now.ended:
                time.sleep(PAUSE_S)
                now = take(folder)
                live.update(frame(now), refresh=True)
    except KeyboardInterrupt:  # the way to look away; the run goes on
        return


def take(folder: Path) -> Snapshot:
    """Read the folder as it is now; an error if it is not, and will not become, a run's."""
    if folder.exists() and not folder.is_dir():
        raise SodapError(f"{folder} is a file, not the folder of a run")
    # Files that begin with a dot are being written: a run puts each in place when it is whole.
    names = {path.name for path in folder.glob("[!.]*")}
    if names and "config.json" not in names:
        raise SodapError(f"{folder} holds no run: there is no config.json in it")
    path = folder / "record.json"
    if not path.is_file():
        return Snapshot(folder, None)
    record = read_json(path)
    if "status" not in record or "stages" not in record:
        raise SodapError(f"{path} is not the record of a run")
    log = folder / "log.jsonl"
    last = max(file.stat().st_mtime for file in (path, log) if file.is_file())
    silence = time.time() - last
    rows = _rows(log)
    return Snapshot(folder, record, rows, _losses(folder, rows), max(0.0, silence))


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (ValueError, RecursionError) as error:
        raise SodapError(f"{path} is damaged: a line is not readable as JSON") from error
    if not all(isinstance(row, dict) for row in rows):
        raise SodapError(f"{path} is damaged: a line does not tell of an epoch")
    return rows


def _losses(folder: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Each loss over the steps of the stage; none for a run of an earlier version."""
    if not rows or not has_state(folder / "steps", f"stage-{rows[-1]['stage']}"):
        return {}
    try:
        tensors, _ = load_state(folder / "steps", f"stage-{rows[-1]['stage']}")
    except SodapError:  # it is just being replaced; the next look will find it
        return {}
    return {
        term: tensors[f"loss.{term}"].tolist()
        for term in rows[-1]["losses"]
        if f"loss.{term}" in tensors
    }


# ---------------------------------------------------------------------- the frame


def frame(now: Snapshot) -> RenderableType:
    if now.record is None:
        there = (now.folder / "config.json").is_file()
        why = "it has only just begun" if there else "there is nothing yet"
        return Text(f"{now.folder}: waiting for the run's first record, {why}")
    parts: list[RenderableType] = [_title(now), _stages(now)]
    if now.record["R"]["accuracy"]:
        parts += ["", _matrix(now.record)]
    parts += ["", *_last_epoch(now), _ending(now)]
    return Group(*parts)


def _title(now: Snapshot) -> Text:
    assert now.record is not None
    config = now.record["config"]
    words = f"{config['method']} learns {now.record['stream']['name']}"
    return Text.assemble(
        (words, "bold"), f", seed {config['seed']}, on {now.record['backbone']['name']}"
    )


def _stages(now: Snapshot) -> Table:
    """A line a domain: how its validation went, what drift was seen and what was done about it."""
    assert now.record is not None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("", "domain", "epochs", "validation macro-F1", "drift", "frozen + active"):
        table.add_column(head, justify="right" if head in ("", "epochs", "drift") else "left")
    done = {stage["stage"]: stage for stage in now.record["stages"]}
    begun = {number: stage["begun"] for number, stage in done.items()}
    under_way = now.record.get("under_way")
    if under_way is not None:
        begun[under_way["stage"]] = under_way["begun"]
    for number, name in enumerate(_learned(now.record), start=1):
        scores = [row["val_macro_f1"] for row in now.rows if row["stage"] == number]
        met = begun.get(number, {})
        table.add_row(
            Text("✓" if number in done else "…" if number in begun else "", "green"),
            Text(name, "" if number in begun else "dim"),
            str(len(scores) or ""),
            _curve(scores, done.get(number)),
            _drift(met),
            _decision(met),
        )
    return table


def _curve(scores: Sequence[float], stage: Mapping[str, Any] | None) -> str:
    if scores:
        return f"{sparkline(scores)} best {max(scores):.3f}"
    return "" if stage is None else f"{stage['best_val_macro_f1']:.3f}"  # in closed form


def _drift(begun: Mapping[str, Any]) -> str:
    """The score, and where it would lie if nothing had changed; or why it says little."""
    drift = begun.get("drift")
    if drift is None:
        return ""
    if too_few(drift):
        return "too few batches"
    band = drift["null_band"]
    without = f" (none: {band['low']:.2f}–{band['high']:.2f})" if band else ""
    return f"{drift['score']:.2f}{without}"


def _decision(begun: Mapping[str, Any]) -> str:
    pool = begun.get("pool")
    if pool is None:
        return ""
    added = begun.get("drift", {}).get("added")
    grown = "" if added is None else f", grew by {added}" if added else ", did not grow"
    return f"{pool['frozen']} + {pool['active']}{grown}"


def _matrix(record: Mapping[str, Any]) -> Table:
    """R so far; what was not learned yet is dim."""
    names = [domain["name"] for domain in record["stream"]["domains"]]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("accuracy after", style="dim")
    for name in names:
        table.add_column(escape(name), justify="center")
    for stage, row in enumerate(record["R"]["accuracy"]):
        cells = [
            Text(f" {value:.3f} ", _shade(value) if domain <= stage else "dim")
            for domain, value in enumerate(row)
        ]
        table.add_row(escape(names[stage]), *cells)
    return table


def _shade(value: float) -> Style:
    value = min(max(value, 0.0), 1.0)
    red, green, blue = (round(a + (b - a) * value) for a, b in zip(LOW, HIGH, strict=True))
    ink = "black" if value > 0.5 else "white"
    return Style(color=ink, bgcolor=Color.from_rgb(red, green, blue).name)


def _last_epoch(now: Snapshot) -> list[RenderableType]:
    if not now.rows:
        return []
    row = now.rows[-1]
    weights = row.get("weights") or {}
    losses = [
        f"{name} {loss:.3g}"
        + (f" ×{weights[name]:.2f}" if name in weights else "")
        + (f" {sparkline(thinned(now.losses[name]))}" if name in now.losses else "")
        for name, loss in row["losses"].items()
    ]
    speeds = [each["images_per_second"] for each in now.rows[1:]] or [row["images_per_second"]]
    average = sum(speeds) / len(speeds)
    where = f"stage {row['stage']}, epoch {row['epoch']}"
    # A narrow terminal breaks between two losses, never within one.
    each = Columns([Text(words, no_wrap=True) for words in (*losses, f"({where})")], (0, 2, 0, 0))
    line = Table.grid()
    line.add_row("losses      ", each)
    return [
        line,
        Text(f"throughput  {row['images_per_second']:.0f} images/s, {average:.0f} on average"),
    ]


def _ending(now: Snapshot) -> Text:
    record = now.record
    assert record is not None
    if now.status == "finished":
        metrics = record["metrics"]["accuracy"]
        forgot = metrics["average_forgetting"]
        lost = "" if forgot is None else f", AvgF {forgot:.3f}"
        return Text(f"finished: AvgACC {metrics['average_accuracy']:.3f}{lost}", "bold green")
    if now.status in ("failed", "interrupted"):
        style = "bold red" if now.status == "failed" else "bold yellow"
        words = f"{now.status}: {record['note']}; go on with the same command and --resume"
        return Text(words, style)
    slowest = max((row["seconds"] for row in now.rows), default=0.0)
    if now.silence > max(SILENCE_S, 10 * slowest):
        quiet = format_duration(now.silence)
        return Text(f"running, but silent for {quiet}: it may have been killed", "bold yellow")
    left = time_left(record, now.rows)
    return Text("running" if left is None else f"running, {left}")


def _learned(record: Mapping[str, Any]) -> dict[str, int]:
    """The domains with images to train on, and how many; others are only tested on."""
    counts = {d["name"]: sum(d["counts"]["train"]) for d in record["stream"]["domains"]}
    return {name: count for name, count in counts.items() if count}


# ---------------------------------------------------------------------- numbers


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The last `width` values, from the lowest to the highest of them."""
    shown = list(values)[-width:]
    low, high = min(shown), max(shown)
    if high == low:
        return BARS[len(BARS) // 2] * len(shown)
    return "".join(BARS[round((v - low) / (high - low) * (len(BARS) - 1))] for v in shown)


def thinned(values: Sequence[float], most: int = 8) -> list[float]:
    """Means of values that follow each other, at most so many; what is no number is left out."""
    there = [value for value in values if value == value]
    size = max(1, -(-len(there) // most))
    groups = [there[at : at + size] for at in range(0, len(there), size)]
    return [sum(group) / len(group) for group in groups]


def time_left(record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """How long it may yet take, from the time that an image took so far.

    Early stopping decides how many epochs a stage has. The stages that are over tell how many to
    expect; before the first is over there is only the most that there can be.
    """
    training = record["config"]["training"]
    images = list(_learned(record).values())
    seen = sum(images[row["stage"] - 1] for row in rows)
    if not seen:
        return None
    cost = sum(row["seconds"] for row in rows) / seen
    done = record["stages"]
    usual = sum(stage["epochs"] for stage in done) / len(done) if done else training["epochs"]
    left = 0.0
    for stage in range(len(done) + 1, len(images) + 1):
        scores = [row["val_macro_f1"] for row in rows if row["stage"] == stage]
        epochs = usual
        if scores:
            bad = len(scores) - 1 - scores.index(max(scores))
            patience = min(training["patience"] - bad, training["epochs"] - len(scores))
            epochs = max(usual - len(scores), patience)
        left += max(0.0, epochs) * images[stage - 1] * cost
    if left < 1:
        return "about to end"
    return f"{'about' if done else 'at most'} {format_duration(left)} left"
