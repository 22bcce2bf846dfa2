"""What a run has shown so far, and the files that say so.

FOLDER/record.json    the header, R, metrics, stages, status; written when it has news
FOLDER/log.jsonl      one line an epoch
FOLDER/steps/         losses and learned weights of every step
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sodap.evaluation import accuracy, macro_f1, quadratic_kappa, summary
from sodap.learning import StageProgress
from sodap.runs.evidence import keep_steps
from sodap.runs.writer import Writer
from sodap.storage import as_json, write_bytes

MEASURES: Mapping[str, Callable[[NDArray[np.int64]], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "kappa": quadratic_kappa,
}


class RunLog:
    """The stages that are over, one after the other, and how the one under way gets on."""

    def __init__(self, folder: Path, header: dict[str, Any], writer: Writer) -> None:
        self.folder, self.header, self.writer = folder, header, writer
        self.stages: list[dict[str, Any]] = []
        self.confusions: list[list[list[list[int]]]] = []
        """`[stage][domain][truth][answer]`"""
        self._under_way: StageProgress | None = None
        self._R: dict[str, list[list[float]]] = {name: [] for name in MEASURES}
        self._lines: list[str] = []  # of the log
        self._record: dict[str, Any] = {}
        self._told: tuple[int, Mapping[str, Any]] | None = None
        """Of how many stages the record tells, and what else is in it that changes."""

    def write(
        self, status: str, note: str | None = None, progress: StageProgress | None = None
    ) -> dict[str, Any]:
        """Let the files tell how things stand, and return the record.

        Only the end of a run waits until they are written.
        """
        rows = [row for stage in self.stages for row in stage["history"]]
        steps = None
        if progress is not None:
            self._under_way = progress
            steps = StageProgress(progress.stage, progress.epoch, trace=progress.trace)
        begun = {}
        if self._under_way is not None and self._under_way.stage > len(self.stages):
            rows += self._under_way.history
            begun = {"under_way": {"stage": self._under_way.stage, "begun": self._under_way.begun}}
        now = {"status": status, "note": note, **begun}
        news = (len(self.stages), now) != self._told  # not so from one epoch to the next
        if news:
            self._told = (len(self.stages), now)
            self._record = self._all(now)
        # As bytes: what they are made from changes before they are written.
        self._lines += [json.dumps(row) + "\n" for row in rows[len(self._lines) :]]
        log = "".join(self._lines).encode()
        record = as_json(self._record) if news else None

        def put() -> None:
            if steps is not None:
                keep_steps(self.folder, steps)
            write_bytes(self.folder / "log.jsonl", log)
            if record is not None:
                write_bytes(self.folder / "record.json", record)

        self.writer.write(put)
        if status == "finished":
            self.writer.wait()
        elif status != "running":
            self.writer.settle()
        return self._record

    def _all(self, now: Mapping[str, Any]) -> dict[str, Any]:
        """The record, with what is so `now`."""
        return {
            **self.header,
            **now,
            "R": {name: list(self._matrix(name)) for name in MEASURES},
            "metrics": {
                name: summary(self._matrix(name)) if self.confusions else None for name in MEASURES
            },
            "throughput": _throughput(self.stages),
            "confusions": list(self.confusions),
            "stages": [
                {key: value for key, value in stage.items() if key != "history"}
                for stage in self.stages
            ],
        }

    def _matrix(self, name: str) -> list[list[float]]:
        """R by one measure; rows of stages that are done do not change."""
        rows = self._R[name]
        for confusions in self.confusions[len(rows) :]:
            rows.append([MEASURES[name](np.array(matrix)) for matrix in confusions])
        return rows


def _throughput(stages: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Images a second. The first epoch of a run warms the machine up and does not count."""
    epochs = [row["images_per_second"] for stage in stages for row in stage["history"]][1:]
    seen = [stage["evaluation"] for stage in stages if "evaluation" in stage]
    seconds = sum(each["seconds"] for each in seen)
    return {
        "train": float(np.mean(epochs)) if epochs else None,
        "inference": sum(each["images"] for each in seen) / seconds if seconds else None,
    }
