"""Where a run can go on after an interruption; written while it goes on anyway."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from sodap.errors import SodapError
from sodap.storage import has_state, load_state, save_state

SHARE = 20
"""Between two checkpoints of a stage lies so many times the time that one takes: a large model on
a fast GPU would else spend its day on files. A lost epoch is computed again, to the same numbers.
"""


class Checkpoint:
    """FOLDER/checkpoint. One is written at a time, and each takes the place of the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoint"
        self.due = 0.0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._written: Future[None] | None = None

    def is_due(self) -> bool:
        under_way = self._written is not None and not self._written.done()
        return not under_way and time.perf_counter() >= self.due

    def write(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Begin to write. What went wrong with the one before is raised here."""
        self.wait()
        began = time.perf_counter()
        # Copies: training goes on and changes the originals.
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self._written = self._writer.submit(self._write, tensors, copy.deepcopy(facts), began)

    def _write(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], began: float) -> None:
        save_state(self.folder, "state", tensors, facts)
        now = time.perf_counter()
        self.due = now + SHARE * (now - began)

    def wait(self) -> None:
        """Until it is on disk."""
        written = self._written
        if written is not None:
            try:
                written.result()
            finally:
                if written.done():  # and not, if this very wait was interrupted
                    self._written = None

    def settle(self) -> None:
        """Until nobody writes any more, well or badly: what ended the run is said already."""
        with suppress(SodapError):
            self.wait()

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last one, if there is one."""
        return load_state(self.folder, "state") if has_state(self.folder, "state") else None

    def drop(self) -> None:
        """Of a run that is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)
