"""Callbacks of a run; progress bars and trackers are made of them."""

from __future__ import annotations

from sodap.learning.trace import Trace
from sodap.runs.record import EpochRow, RunRecord, StageRecord
from sodap.streams import Stage, Stream


class RunCallback:
    """Run callbacks; the base class ignores them.

    They are called before the files of the run are on disk, which are written in the background.
    """

    def images_decoded(self, done: int, total: int) -> None: ...

    def started(self, stream: Stream, stages_done: int) -> None: ...

    def batch_done(self, stage: Stage, epoch: int, step: int, steps: int) -> None: ...

    def steps_done(self, stage: Stage, trace: Trace) -> None:
        """Called after each epoch with all steps of the stage so far."""

    def epoch_done(self, stage: Stage, row: EpochRow) -> None: ...

    def stage_done(self, stage: Stage, record: StageRecord) -> None: ...

    def recorded(self, record: RunRecord) -> None:
        """Called with the record at the start, after each epoch, and at the end of the run.

        At the end of a finished run the record is on disk.
        """


class Callbacks(RunCallback):
    """Several callbacks as one."""

    def __init__(self, *callbacks: RunCallback) -> None:
        self.callbacks = callbacks

    def images_decoded(self, done: int, total: int) -> None:
        for each in self.callbacks:
            each.images_decoded(done, total)

    def started(self, stream: Stream, stages_done: int) -> None:
        for each in self.callbacks:
            each.started(stream, stages_done)

    def batch_done(self, stage: Stage, epoch: int, step: int, steps: int) -> None:
        for each in self.callbacks:
            each.batch_done(stage, epoch, step, steps)

    def steps_done(self, stage: Stage, trace: Trace) -> None:
        for each in self.callbacks:
            each.steps_done(stage, trace)

    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        for each in self.callbacks:
            each.epoch_done(stage, row)

    def stage_done(self, stage: Stage, record: StageRecord) -> None:
        for each in self.callbacks:
            each.stage_done(stage, record)

    def recorded(self, record: RunRecord) -> None:
        for each in self.callbacks:
            each.recorded(record)
