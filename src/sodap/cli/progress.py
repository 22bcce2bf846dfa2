"""Progress bars with throughput and time left; a line a stage where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sodap.formats import plural
from sodap.runs import RunCallback
from sodap.runs.record import EpochRow, StageRecord
from sodap.streams import Stage, Stream


class Bars:
    """Bars below the lines that are said; where there is no terminal, the lines alone."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)


class ProgressBars(Bars, RunCallback):
    """One bar for the stream, one for the epoch under way."""

    def __init__(self, console: Console, title: str = "") -> None:
        super().__init__(console)
        self.title = title
        self.stream = self.progress.add_task(title or "stream", total=None, note="")
        self.epoch = self.progress.add_task("", total=None, note="", visible=False)
        self.began = 0.0

    def images_decoded(self, done: int, total: int) -> None:
        words = "  reading images, once"
        self.progress.update(
            self.epoch, description=words, completed=done, total=total, visible=True
        )

    def started(self, stream: Stream, stages_done: int) -> None:
        self.progress.update(self.epoch, visible=False)
        for note in stream.notes:
            self._say(f"note: {note}")
        self.progress.update(
            self.stream,
            description=escape(self.title or stream.name),
            total=len(stream),
            completed=stages_done,
            note="domains learned",
        )
        if stages_done:
            self._say(f"{stages_done} of {len(stream)} domains were learned already")

    def batch_done(self, stage: Stage, epoch: int, step: int, steps: int) -> None:
        now = time.perf_counter()
        if step == 1:
            self.began = now
            self.progress.update(
                self.epoch,
                description=escape(f"  {stage.number} {stage.domain.name}, epoch {epoch}"),
                total=steps,
                visible=True,
            )
        images = min(step / steps, 1) * len(stage.domain.train)
        speed = images / (now - self.began) if step > 1 else 0.0
        note = f"{speed:.0f} images/s" if speed else ""
        self.progress.update(self.epoch, completed=step, note=note)

    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        note = f"validation macro-F1 {row.val_macro_f1:.3f}"
        self.progress.update(self.stream, note=note)

    def stage_done(self, stage: Stage, record: StageRecord) -> None:
        self.progress.update(self.stream, advance=1)
        self.progress.update(self.epoch, visible=False)
        words = [
            f"stage {stage.number} {stage.domain.name}:",
            f"{_epochs(record.epochs)}{record.seconds:.0f} s,",
            f"best validation macro-F1 {record.best_val_macro_f1:.3f}",
        ]
        drift = record.begun.drift
        if drift is not None:
            few = drift.too_few
            known = f"{drift.score:.2f}" if few is None else f"hardly measured ({few})"
            words.append(f"| drift {known}, {drift.added} prompts added")
        self._say(" ".join(words))


def _epochs(count: int) -> str:
    """A method in closed form has none."""
    return f"{plural(count, 'epoch')} in " if count else ""
