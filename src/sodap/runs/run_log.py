"""The log of a run, kept up to date while it learns.

FOLDER/record.json    the record (see `sodap.runs.record`); written when it changes
FOLDER/log.jsonl      one line an epoch
FOLDER/steps/         losses and learned weights of every step
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sodap.evaluation import accuracy, macro_f1, quadratic_kappa
from sodap.learning import StageProgress
from sodap.runs.answers import stored_answers
from sodap.runs.evidence import pending_steps
from sodap.runs.process import this_process
from sodap.runs.record import (
    EpochRow,
    MetricsByMeasure,
    ResultMatrices,
    RunRecord,
    StageRecord,
    StageUnderWay,
    Status,
    Throughput,
)
from sodap.runs.writer import Writer
from sodap.storage import as_json, write_bytes
from sodap.streams import Stream

MEASURES: Mapping[str, Callable[[NDArray[np.int64]], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "kappa": quadratic_kappa,
}


class RunLog:
    """The record and log of a run: finished stages, and the one under way."""

    def __init__(self, folder: Path, record: RunRecord, writer: Writer, stream: Stream) -> None:
        self.folder, self.record, self.writer, self.stream = folder, record, writer, stream
        self.stages: list[StageRecord] = []
        self.confusions: list[list[list[list[int]]]] = []
        """`[stage][domain][label][prediction]`"""
        self.answers: list[list[str]] = []
        """`[stage][domain]`, as in `sodap.runs.answers`."""
        self.epochs: list[EpochRow] = []
        """Epochs of the finished stages."""
        self.process = this_process()
        self._under_way: StageProgress | None = None
        self._R: dict[str, list[list[float]]] = {name: [] for name in MEASURES}
        self._lines: list[str] = []  # of log.jsonl
        self._written: tuple[int, Mapping[str, Any]] | None = None
        """Number of stages in the last record, and its other fields that change."""

    def finish_stage(
        self,
        stage: StageRecord,
        epochs: Sequence[EpochRow],
        confusions: list[list[list[int]]],
        answers: list[str] | None,
    ) -> None:
        """`answers` is None for a stage of an earlier version, which did not keep them."""
        self.stages.append(stage)
        self.answers += [] if answers is None else [answers]
        self.epochs += epochs
        self.confusions.append(confusions)

    def write(
        self, status: Status, note: str | None = None, progress: StageProgress | None = None
    ) -> RunRecord:
        """Write all files in the background, and return the record.

        Only the end of a run waits until they are on disk.
        """
        steps = []
        if progress is not None:
            self._under_way = progress
            steps = pending_steps(self.folder, progress)
        rows, under_way = self.epochs, None
        if self._under_way is not None and self._under_way.stage > len(self.stages):
            rows = [*rows, *epoch_rows(self._under_way)]
            under_way = StageUnderWay.model_validate(
                {"stage": self._under_way.stage, "begun": self._under_way.begun}
            )
        process = self.process if status == "running" else None
        now = {"status": status, "note": note, "under_way": under_way, "process": process}
        changed = (len(self.stages), now) != self._written  # not from one epoch to the next
        if changed:
            self._written = (len(self.stages), now)
            self.record = self.record.model_copy(update=now | self._results())
        # As bytes: the objects that they are made from change before the bytes are written.
        self._lines += [json.dumps(row.model_dump()) + "\n" for row in rows[len(self._lines) :]]
        contents = {"log.jsonl": "".join(self._lines).encode()}
        if changed:
            contents["record.json"] = as_json(self.record.model_dump(mode="json"))
        self.writer.write(
            *(each.write for each in steps),
            *(partial(write_bytes, self.folder / file, text) for file, text in contents.items()),
        )
        if status == "finished":
            self.writer.wait()
        elif status != "running":
            self.writer.settle()
        return self.record

    def _results(self) -> dict[str, Any]:
        """Fields of the record that follow from the finished stages."""
        complete = 0 < len(self.answers) == len(self.stages)
        R = ResultMatrices(**{name: list(self._matrix(name)) for name in MEASURES})
        return {
            "R": R,
            "metrics": MetricsByMeasure.of(R),
            "throughput": _throughput(self.stages, self.epochs),
            "confusions": list(self.confusions),
            "answers": stored_answers(self.stream, self.answers) if complete else [],
            "stages": list(self.stages),
        }

    def _matrix(self, name: str) -> list[list[float]]:
        """R by one measure; the rows of finished stages do not change."""
        rows = self._R[name]
        for confusions in self.confusions[len(rows) :]:
            rows.append([MEASURES[name](np.array(matrix)) for matrix in confusions])
        return rows


def epoch_rows(progress: StageProgress) -> list[EpochRow]:
    """The epochs of a stage so far."""
    return [EpochRow.model_validate(row) for row in progress.history]


def _throughput(stages: Sequence[StageRecord], epochs: Sequence[EpochRow]) -> Throughput:
    """Images a second; the first epoch of a run is a warm-up and does not count."""
    speeds = [row.images_per_second for row in epochs[1:]]
    tested = [stage.evaluation for stage in stages if stage.evaluation is not None]
    seconds = sum(each.seconds for each in tested)
    return Throughput(
        train=float(np.mean(speeds)) if speeds else None,
        inference=sum(each.images for each in tested) / seconds if seconds else None,
    )
