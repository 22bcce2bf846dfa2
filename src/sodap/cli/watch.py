"""`sodap watch`: show a run while it learns, from the files that it writes.

It reads only files, so several people can watch a run, from any machine that sees its folder, and a
run that has ended can be shown in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.color import Color
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.style import Style
from rich.table import Table
from rich.text import Text

from sodap.cli.time_left import time_left
from sodap.errors import SodapError
from sodap.evaluation import MEANINGS
from sodap.formats import format_duration, plural
from sodap.learning.trace import Trace
from sodap.runs.process import is_gone
from sodap.runs.reading import read_log, read_record
from sodap.runs.record import DriftInfo, EpochRow, RunRecord, StageInfo, StageRecord
from sodap.storage import has_state, load_state

REFRESH_S = 0.5
"""Seconds between two readings of the folder."""

SILENCE_S = 60.0
"""Seconds without a new file, or ten of its longest epochs, after which a run may be dead."""

BARS = "▁▂▃▄▅▆▇█"
LOW, HIGH = (24, 34, 66), (120, 214, 255)
"""Colours of accuracy 0 and 1."""


@dataclass(frozen=True)
class Snapshot:
    """Content of a run's folder at one moment."""

    folder: Path
    record: RunRecord | None
    """The record; None before the run has written one."""
    rows: Sequence[EpochRow] = ()
    """The log, a row an epoch."""
    losses: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Each loss over the steps of the last stage in the log."""
    silence: float = 0.0
    """Seconds since the record or the log was written."""
    gone: bool = False
    """Whether the process that runs is known to have ended."""

    @property
    def ended(self) -> bool:
        return self.record is not None and self.record.status != "running"


def watch_run(console: Console, folder: Path, *, once: bool) -> None:
    """Show the run until it ends; off a terminal, print its present state once."""
    now = take_snapshot(folder)
    if once or not console.is_terminal:
        if not (folder / "config.json").is_file():
            raise SodapError(f"there is no run at {folder}")
        console.print(frame(now))
        return
    try:
        with Live(frame(now), console=console, auto_refresh=False) as live:
            while not now.ended:
                time.sleep(REFRESH_S)
                now = take_snapshot(folder)
                live.update(frame(now), refresh=True)
    except KeyboardInterrupt:  # ends the display, not the run
        return


def take_snapshot(folder: Path) -> Snapshot:
    """Read the folder as it is now; an error if it is not the folder of a run."""
    if folder.exists() and not folder.is_dir():
        raise SodapError(f"{folder} is a file, not the folder of a run")
    # Files that begin with a dot are being written and will be renamed.
    names = {path.name for path in folder.glob("[!.]*")}
    if names and "config.json" not in names:
        raise SodapError(f"{folder} holds no run: there is no config.json in it")
    path = folder / "record.json"
    if not path.is_file():
        return Snapshot(folder, None)
    record = read_record(path)
    log = folder / "log.jsonl"
    last = max(file.stat().st_mtime for file in (path, log) if file.is_file())
    silence = time.time() - last
    rows, damaged = read_log(log)
    if damaged:
        raise SodapError(f"{log} is damaged: {plural(damaged, 'line')} cannot be read")
    gone = record.status == "running" and is_gone(record.process)
    return Snapshot(folder, record, rows, _losses(folder, rows), max(0.0, silence), gone)


def _losses(folder: Path, rows: Sequence[EpochRow]) -> dict[str, list[float]]:
    """Each loss over the steps of the last stage in the log."""
    if not rows or not has_state(folder / "steps", f"stage-{rows[-1].stage}"):
        return {}
    try:
        tensors, _ = load_state(folder / "steps", f"stage-{rows[-1].stage}")
    except SodapError:  # it is being replaced at this moment
        return {}
    losses = Trace.from_tensors(tensors).losses
    return {term: losses[term].tolist() for term in rows[-1].losses if term in losses}


# ---------------------------------------------------------------------- the frame


def frame(now: Snapshot) -> RenderableType:
    record = now.record
    if record is None:
        begun = (now.folder / "config.json").is_file()
        why = "it has just started" if begun else "there is no run yet"
        return Text(f"{now.folder}: waiting for the first record of the run, {why}")
    parts: list[RenderableType] = [_title(record), _stages(record, now.rows), *_hardly(record)]
    if record.R.accuracy:
        parts += ["", _matrix(record)]
    parts += ["", *_last_epoch(now), _status_line(record, now)]
    return Group(*parts)


def _title(record: RunRecord) -> Text:
    words = f"{record.config.method} learns {record.stream.name}"
    backbone = record.config.backbone if record.backbone is None else record.backbone.name
    return Text.assemble((words, "bold"), f", seed {record.config.seed}, on {backbone}")


def _stages(record: RunRecord, rows: Sequence[EpochRow]) -> Table:
    """A line a domain: epochs, validation scores, drift and pool."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("", "domain", "epochs", "validation macro-F1", "drift", "frozen + active"):
        table.add_column(head, justify="right" if head in ("", "epochs", "drift") else "left")
    done = {stage.stage: stage for stage in record.stages}
    begun = {number: stage.begun for number, stage in done.items()}
    if record.under_way is not None:
        begun[record.under_way.stage] = record.under_way.begun
    for number, domain in enumerate(record.stream.learned, start=1):
        scores = [row.val_macro_f1 for row in rows if row.stage == number]
        info = begun.get(number, StageInfo())
        table.add_row(
            Text("✓" if number in done else "…" if number in begun else "", "green"),
            Text(domain.name, "" if number in begun else "dim"),
            str(len(scores) or ""),
            _curve(scores, done.get(number)),
            _drift(info.drift),
            _pool(info),
        )
    return table


def _curve(scores: Sequence[float], stage: StageRecord | None) -> str:
    if scores:
        return f"{sparkline(scores)} best {max(scores):.3f}"
    if stage is None or stage.best_val_macro_f1 is None:
        return ""
    return f"{stage.best_val_macro_f1:.3f}"  # a closed form has no epochs


def _drift(drift: DriftInfo | None) -> str:
    """The score and its range without drift, or that it says little."""
    if drift is None:
        return ""
    if drift.too_few:
        return "too few batches"
    band = drift.null_band
    without = f" (none: {band.low:.2f}–{band.high:.2f})" if band else ""
    return f"{drift.score:.2f}{without}"


def _hardly(record: RunRecord) -> list[Text]:
    """What a drift with too few batches means, if a stage has one."""
    begun = [stage.begun for stage in record.stages]
    if record.under_way is not None:
        begun.append(record.under_way.begun)
    few = next((each.drift.too_few for each in begun if each.drift and each.drift.too_few), None)
    if few is None:
        return []
    return [Text(f"too few batches: the drift is hardly measured, with {few}", "dim")]


def _pool(begun: StageInfo) -> str:
    if begun.pool is None:
        return ""
    grown = ""
    if begun.drift is not None:
        grown = f", grew by {begun.drift.added}" if begun.drift.added else ", did not grow"
    return f"{begun.pool.frozen} + {begun.pool.active}{grown}"


def _matrix(record: RunRecord) -> Table:
    """R so far; domains that are not learned yet are dim."""
    names = [domain.name for domain in record.stream.domains]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("accuracy after", style="dim")
    for name in names:
        table.add_column(escape(name), justify="center")
    for stage, row in enumerate(record.R.accuracy):
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
    losses = [
        f"{name} {loss:.3g}"
        + (f" ×{row.weights[name]:.2f}" if name in row.weights else "")
        + (f" {sparkline(binned(now.losses[name]))}" if name in now.losses else "")
        for name, loss in row.losses.items()
    ]
    speeds = [each.images_per_second for each in now.rows[1:]] or [row.images_per_second]
    average = sum(speeds) / len(speeds)
    where = f"stage {row.stage}, epoch {row.epoch}"
    # A narrow terminal breaks lines between two losses, never within one.
    each = Columns([Text(words, no_wrap=True) for words in (*losses, f"({where})")], (0, 2, 0, 0))
    line = Table.grid()
    line.add_row("losses      ", each)
    return [
        line,
        Text(f"throughput  {row.images_per_second:.0f} images/s, {average:.0f} on average"),
    ]


def _status_line(record: RunRecord, now: Snapshot) -> Text:
    verdict = record.verdict
    if record.status == "finished" and verdict is not None:
        metrics = record.metrics.accuracy
        assert metrics is not None
        values = {
            "AvgACC": metrics.average_accuracy,
            "AvgF": metrics.average_forgetting,
            "BWT": metrics.backward_transfer,
        }
        lines = [
            f"finished: final average {verdict.final:.3f}; always answering '{verdict.answer}' "
            f"gives {verdict.constant:.3f}",
            *(
                f"{name} {value:.3f}: {MEANINGS[name]}"
                for name, value in values.items()
                if value is not None
            ),
        ]
        style = "bold yellow" if verdict.warnings else "bold green"
        return Text.assemble(
            *((f"{line}\n", style) for line in (lines[0], *verdict.warnings)),
            ("\n".join(lines[1:]), "dim"),
        )
    if record.status in ("failed", "interrupted"):
        style = "bold red" if record.status == "failed" else "bold yellow"
        words = f"{record.status}: {record.note}; continue with the same command and --resume"
        return Text(words, style)
    if now.gone:
        words = "killed: its process has ended; continue with the same command and --resume"
        return Text(words, "bold red")
    slowest = max((row.seconds for row in now.rows), default=0.0)
    if now.silence > max(SILENCE_S, 10 * slowest):
        quiet = format_duration(now.silence)
        return Text(f"running, but silent for {quiet}: it may have been killed", "bold yellow")
    left = time_left(record, now.rows)
    return Text("running" if left is None else f"running, {left}")


# ---------------------------------------------------------------------- numbers


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The last `width` values as bars, scaled from their lowest to their highest."""
    shown = list(values)[-width:]
    low, high = min(shown), max(shown)
    if high == low:
        return BARS[len(BARS) // 2] * len(shown)
    return "".join(BARS[round((v - low) / (high - low) * (len(BARS) - 1))] for v in shown)


def binned(values: Sequence[float], most: int = 8) -> list[float]:
    """Means of successive values, at most `most` of them; NaNs are left out."""
    known = [value for value in values if value == value]
    size = max(1, -(-len(known) // most))
    groups = [known[at : at + size] for at in range(0, len(known), size)]
    return [sum(group) / len(group) for group in groups]
