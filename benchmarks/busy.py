"""Utilisation of the GPU, sampled from the driver twice a second."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from types import TracebackType
from typing import Self

import torch

PERIOD = 0.5
"""Seconds between two samples."""


class BusyGpu:
    """Context manager that samples utilisation; read `share` afterwards."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []  # time, utilisation before it
        self._driver: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        program = shutil.which("nvidia-smi")
        if program is None or not torch.cuda.is_available():
            return self
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._driver = subprocess.Popen(
            [
                program,
                f"--id=GPU-{device.uuid}",
                "--query-gpu=utilization.gpu",
                "--format=csv,noheader,nounits",
                f"--loop-ms={1000 * PERIOD:.0f}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._driver is not None and self._reader is not None:
            self._driver.terminate()
            self._driver.wait()
            self._reader.join()

    def _read(self) -> None:
        assert self._driver is not None
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if line.strip().isdigit():
                self.samples.append((time.perf_counter(), int(line) / 100))

    def share(self, since: float = 0.0) -> float | None:
        """Mean of all samples since a time of `time.perf_counter`; None without `nvidia-smi`."""
        counted = [share for when, share in self.samples if when >= since]
        return sum(counted) / len(counted) if counted else None
