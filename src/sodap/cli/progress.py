"""Progress bars with throughput and time left; off a terminal, one line an epoch."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape

from sodap.bars import Bars
from sodap.cli.time_left import time_left
from sodap.evaluation import tiny_tests
from sodap.formats import format_duration, plural
from sodap.runs.callback import RunCallback
from sodap.runs.record import DriftInfo, EpochRow, RunRecord, StageRecord
from sodap.streams import Stage, Stream


class RunProgress(Bars, RunCallback):
    """One bar for the stream and one for the present epoch."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.stream = self.progress.add_task("stream", total=None, note="")
        self.epoch = self.progress.add_task("", total=None, note="", visible=False)
        self.began = 0.0
        self.record: RunRecord | None = None
        self.rows: list[EpochRow] = []
        self.explained = False
        """Whether a drift of few batches was explained."""

    def images_decoded(self, done: int, total: int) -> None:
        self.progress.update(
            self.epoch,
            description="  reading images, once",
            completed=done,
            total=total,
            visible=True,
        )

    def started(self, stream: Stream, stages_done: int) -> None:
        self.progress.update(self.epoch, visible=False)
        for note in stream.notes:
            self._print(f"note: {note}")
        tiny = tiny_tests([(domain.name, len(domain.test)) for domain in stream.tested])
        if tiny:
            self._print(f"note: {tiny}")
        self.progress.update(
            self.stream,
            description=escape(stream.name),
            total=len(stream),
            completed=stages_done,
            note="domains learned",
        )
        if stages_done:
            self._print(f"{stages_done} of {len(stream)} domains were learned before")

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

    def recorded(self, record: RunRecord) -> None:
        self.record = record

    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        self.rows.append(row)
        score = f"validation macro-F1 {row.val_macro_f1:.3f}"
        self.progress.update(self.stream, note=score)
        if not self.console.is_terminal:
            losses = ", ".join(f"{name} {loss:.3g}" for name, loss in row.losses.items())
            self._print(
                f"stage {stage.number} {stage.domain.name}, epoch {row.epoch}: {losses}; {score}, "
                f"{format_duration(row.seconds)}, {row.images_per_second:.0f} images/s"
                f"{self._left()}"
            )

    def _left(self) -> str:
        left = None if self.record is None else time_left(self.record, self.rows)
        return "" if left is None else f", {left}"

    def stage_done(self, stage: Stage, record: StageRecord) -> None:
        self.progress.update(self.stream, advance=1)
        self.progress.update(self.epoch, visible=False)
        epochs = f"{plural(record.epochs, 'epoch')} in " if record.epochs else ""  # closed form
        line = (
            f"stage {stage.number} {stage.domain.name}: {epochs}{format_duration(record.seconds)}, "
            f"best validation macro-F1 {record.best_val_macro_f1:.3f}{self._early(record)}"
        )
        if record.begun.drift is not None:
            line += f" | {self._drift(record.begun.drift)}"
        self._print(line)

    def _early(self, record: StageRecord) -> str:
        """Why a stage has fewer epochs than it may; empty if it has all of them."""
        training = None if self.record is None else self.record.config.training
        if training is None or not 0 < record.epochs < training.epochs:
            return ""
        return (
            f" (stopped early: no better in {plural(training.patience, 'epoch')} after epoch "
            f"{record.best_epoch}, which is kept)"
        )

    def _drift(self, drift: DriftInfo) -> str:
        """The drift that a stage began with, and what followed; explained once."""
        added = f"{plural(drift.added, 'prompt')} added"
        if drift.too_few is None:
            return f"drift {drift.score:.2f}, {added}"
        why = ""
        if not self.explained:
            self.explained = True
            why = ": the domain before is small, so the pool grows as for a small drift"
        return f"drift hardly measured ({drift.too_few}{why}), {added}"
