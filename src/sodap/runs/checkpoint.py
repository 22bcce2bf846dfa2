"""Checkpoints: the state from which an interrupted run resumes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

from sodap.runs.reading import checked
from sodap.runs.record import Environment, EpochRow, Schema, StageRecord, StreamInfo
from sodap.runs.writer import PendingWrite, Writer
from sodap.storage import has_state, load_state

GAP = 20
"""Minimum gap between checkpoints of a stage, in multiples of the time one takes.

A large model on a fast GPU would otherwise spend most of its time on files. Epochs after the last
checkpoint are computed again, with the same result.
"""


class Origin(Schema):
    """What must be the same when a run is resumed, besides its configuration."""

    backbone: str
    """SHA-256 of the weights."""
    stream: StreamInfo
    device: str


class CheckpointInfo(Schema):
    """Metadata of a checkpoint."""

    format: int = 2
    confusions: list[list[list[list[int]]]]
    """`[stage][domain][label][prediction]`"""
    answers: list[list[str]] = Field([])
    """`[stage][domain]`, as in `sodap.runs.answers`; empty in earlier versions."""
    stages: list[StageRecord]
    """Finished stages."""
    epochs: list[EpochRow]
    """Epochs of the finished stages."""
    origin: Origin
    environments: list[Environment]
    """Programs that the run has run with, the last one last."""
    progress: dict[str, Any] | None = None
    """State of the stage under way (see `sodap.learning.progress.StageProgress`)."""


def upgrade_checkpoint(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata of a checkpoint in the present format.

    Format 1 has no number, keeps the epochs of a stage with the stage, and has no sum of what is
    stored.
    """
    if "format" in metadata:
        return metadata
    stages = metadata["stages"]
    return {
        "environments": [],
        **metadata,
        "format": 2,
        "stages": [
            {**stage, "stored_bytes": sum(asset["bytes"] for asset in stage["stored"])}
            for stage in stages
        ],
        "epochs": [{"steps": 0, **row} for stage in stages for row in stage["history"]],
        "origin": metadata["learned_from"],
    }


class Checkpoint:
    """The checkpoint in FOLDER/checkpoint; each replaces the one before."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self.folder = folder / "checkpoint"
        self.writer = writer
        self.due = 0.0
        self._job: Future[None] | None = None

    def is_due(self) -> bool:
        pending = self._job is not None and not self._job.done()
        return not pending and time.perf_counter() >= self.due

    def write(
        self,
        tensors: Mapping[str, Tensor],
        info: CheckpointInfo,
        first: Sequence[PendingWrite] = (),
    ) -> None:
        """Write copies in the background: training goes on and changes the originals.

        `first` is written before the checkpoint, because a resumed run does not make it again.
        """
        if self._job is not None:
            wait_for([self._job])  # hold one copy of a model at a time
        began = time.perf_counter()
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        state = PendingWrite(self.folder, "state", copies, info.model_dump(mode="json"))
        copying = time.perf_counter() - began

        def write_state() -> None:
            began = time.perf_counter()
            state.write()
            now = time.perf_counter()
            self.due = now + GAP * (now - began + copying)

        self._job = self.writer.write(*(each.write for each in first), write_state)

    def read(self) -> tuple[dict[str, Tensor], CheckpointInfo] | None:
        """The last checkpoint; None if there is none."""
        if not has_state(self.folder, "state"):
            return None
        tensors, metadata = load_state(self.folder, "state")
        content = upgrade_checkpoint(metadata)
        return tensors, checked(CheckpointInfo, content, self.folder / "state.json", "checkpoint")

    def delete(self) -> None:
        """Delete the checkpoint of a finished run."""
        shutil.rmtree(self.folder, ignore_errors=True)
