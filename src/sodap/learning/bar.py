"""A progress bar for `Learner.learn`; off a terminal, one line an epoch."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from sodap.bars import Bars
from sodap.learning.loop import OnBatch, OnEpoch
from sodap.learning.progress import StageProgress


class LearningBar(Bars):
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
        console = Console(stderr=True)
        self.shown = console.is_terminal if show is None else show
        super().__init__(console, shown=self.shown)
        self.task = self.progress.add_task(escape(f"learning {domain}"), total=None, note="")

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
            self._print(f"{self._epoch(progress.epoch)}: {note}")
        if self.on_epoch is not None:
            self.on_epoch(progress)

    def _epoch(self, number: int) -> str:
        return f"learning {self.domain}, epoch {number} of at most {self.epochs}"
