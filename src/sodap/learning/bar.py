"""A progress bar for `Learner.learn`; off a terminal, one line an epoch."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sodap.learning.loop import OnBatch, OnEpoch
from sodap.learning.progress import StageProgress


class LearningBar:
    """The steps of the present epoch, and the validation score of the one before."""

    def __init__(
        self,
        domain: str,
        epochs: int,
        show: bool | None = None,
        on_epoch: OnEpoch | None = None,
        on_batch: OnBatch | None = None,
    ) -> None:
        """`show` None: only on a terminal. Afterwards the caller's functions are called."""
        self.domain, self.epochs = domain, epochs
        self.on_epoch, self.on_batch = on_epoch, on_batch
        self.console = Console(stderr=True)
        self.shown = self.console.is_terminal if show is None else show
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not (self.shown and self.console.is_terminal),
        )
        self.task = self.progress.add_task(escape(f"learning {domain}"), total=None, note="")

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

    def batch_done(self, epoch: int, done: int, steps: int) -> None:
        """Show the steps of an epoch."""
        if self.shown:
            description = escape(self._epoch(epoch))
            self.progress.update(self.task, description=description, completed=done, total=steps)
        if self.on_batch is not None:
            self.on_batch(epoch, done, steps)

    def epoch_done(self, progress: StageProgress) -> None:
        """Show the score of a finished epoch."""
        note = f"validation macro-F1 {progress.history[-1]['val_macro_f1']:.3f}"
        self.progress.update(self.task, note=note)
        if self.shown and not self.console.is_terminal:
            line = f"{self._epoch(progress.epoch)}: {note}"
            self.console.print(line, highlight=False, soft_wrap=True, markup=False)
        if self.on_epoch is not None:
            self.on_epoch(progress)

    def _epoch(self, number: int) -> str:
        return f"learning {self.domain}, epoch {number} of at most {self.epochs}"
