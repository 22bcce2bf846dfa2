"""What there is to watch of a run; progress bars and trackers are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sodap.learning.trace import Trace
from sodap.streams import Stage, Stream


class RunCallback:
    """What can be watched of a run while it goes on; this one looks away.

    It is told before the files of the run say so: these are written in the meantime.
    """

    def images_decoded(self, done: int, total: int) -> None: ...

    def started(self, stream: Stream, stages_done: int) -> None: ...

    def batch_done(self, stage: Stage, epoch: int, step: int, steps: int) -> None: ...

    def steps_done(self, stage: Stage, trace: Trace) -> None:
        """Every step of the stage so far, whenever an epoch of it is over."""

    def epoch_done(self, stage: Stage, row: Mapping[str, Any]) -> None: ...

    def stage_done(self, stage: Stage, record: Mapping[str, Any]) -> None: ...

    def recorded(self, record: Mapping[str, Any]) -> None:
        """The whole record: first of all, after every epoch, and last, on disk, how it ended."""
