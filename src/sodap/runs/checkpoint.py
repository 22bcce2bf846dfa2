"""Where a run can go on after an interruption."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from torch import Tensor

from sodap.runs.writer import Writer
from sodap.storage import has_state, load_state, save_state

SHARE = 20
"""Between two checkpoints of a stage lies so many times the time that one takes: a large model on
a fast GPU would else spend its day on files. A lost epoch is computed again, to the same numbers.
"""


class Checkpoint:
    """FOLDER/checkpoint; each takes the place of the one before."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self.folder = folder / "checkpoint"
        self.writer = writer
        self.due = 0.0
        self._written: Future[None] | None = None

    def is_due(self) -> bool:
        under_way = self._written is not None and not self._written.done()
        return not under_way and time.perf_counter() >= self.due

    def write(
        self,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        first: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Begin to write, from copies: training goes on and changes the originals.

        `first` is what must be on disk before: a run that goes on does not look back for it.
        """
        if self._written is not None:
            wait_for([self._written])  # one copy of a model is enough
        began = time.perf_counter()
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        said = copy.deepcopy(facts)
        copied = time.perf_counter() - began
        self._written = self.writer.write(lambda: self._write(copies, said, copied, first))

    def _write(
        self,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        copied: float,
        first: Sequence[Callable[[], None]],
    ) -> None:
        for write in first:
            write()
        began = time.perf_counter()
        save_state(self.folder, "state", tensors, facts)
        now = time.perf_counter()
        self.due = now + SHARE * (now - began + copied)

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last one, if there is one."""
        return load_state(self.folder, "state") if has_state(self.folder, "state") else None

    def drop(self) -> None:
        """Of a run that is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)
