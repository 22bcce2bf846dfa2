"""Trackers: copy the numbers of a run to TensorBoard, MLflow or Weights & Biases.

Nothing is sent anywhere unless a user asks for it. The folder of the run stays complete; a tracker
gets a copy of these numbers through Lightning's loggers:

loss/NAME, weight/NAME, val/macro_f1, val/accuracy, lr, images_per_second    each epoch
R/accuracy/DOMAIN, drift/score, drift/added, pool/..., metric/...            each stage
step/loss/NAME, step/weight/NAME                                             training steps

The x-axis counts epochs over all stages, or stages for a method without epochs. For names that
begin with `step/` it counts training steps: after each epoch at most `POINTS` numbers are sent,
each the mean of the steps since the one before. A resumed run continues in the same place in
TensorBoard; in the other trackers it becomes a new run that starts at the resumed step.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from sodap.errors import SodapError
from sodap.learning.trace import Trace
from sodap.runs.callback import RunCallback
from sodap.runs.config import RunConfig
from sodap.runs.record import EpochRow, RunRecord, StageRecord
from sodap.streams import Stage, Stream

POINTS = 50
"""Largest number of points an epoch; each is a request to a server."""


class LostTrackerWarning(UserWarning):
    """A tracker failed and gets no more numbers; the run goes on."""


class Logger(Protocol):
    """The part of Lightning's loggers that is used."""

    @property
    def experiment(self) -> Any: ...

    def log_hyperparams(self, params: dict[str, Any]) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...

    def finalize(self, status: str) -> None: ...


def _tensorboard(config: RunConfig, folder: Path) -> Logger:
    """Log into `FOLDER/tensorboard`; `tensorboard --logdir` also takes a folder of many runs."""
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger

    logger: Logger = TensorBoardLogger(
        folder / "tensorboard", name="", version="", default_hp_metric=False
    )
    # TensorBoard's own table of settings needs a final score; a text is there from the start.
    settings = json.dumps(config.described(), indent=1)
    logger.experiment.add_text("config", "    " + settings.replace("\n", "\n    "))
    return logger


def _mlflow(config: RunConfig, folder: Path) -> Logger:
    """Log to the server in `MLFLOW_TRACKING_URI`, or else into a database in the run's folder."""
    from lightning.pytorch.loggers import MLFlowLogger

    server, home = os.environ.get("MLFLOW_TRACKING_URI"), folder.resolve()
    logger: Logger = MLFlowLogger(
        Path(config.stream).stem,
        run_name=folder.name,
        tracking_uri=server or f"sqlite:///{home}/mlflow.db",
        artifact_location=None if server else (home / "mlflow").as_uri(),
    )
    return logger


def _wandb(config: RunConfig, folder: Path) -> Logger:
    """Log to the account of `wandb login`, or with `WANDB_MODE=offline` into the run's folder."""
    from lightning.pytorch.loggers import WandbLogger

    project = os.environ.get("WANDB_PROJECT", "sodap")
    logger: Logger = WandbLogger(project=project, name=folder.name, save_dir=folder)
    return logger


TRACKERS: Mapping[str, Callable[[RunConfig, Path], Logger]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


class Tracker(RunCallback):
    """Sends the numbers of a run to one logger."""

    def __init__(self, kind: str, config: RunConfig, folder: Path) -> None:
        if kind not in TRACKERS:
            names = ", ".join(TRACKERS)
            raise SodapError(f"no log is called '{kind}'; there are: {names}")
        if find_spec(kind) is None or find_spec("lightning") is None:
            raise SodapError(f"--log {kind} needs an extra package: pip install 'sodap[track]'")
        self.kind, self.config, self.folder = kind, config, folder
        self.logger: Logger | None = None
        self.record: RunRecord | None = None
        self.epochs = 0
        """Epochs in finished stages."""
        self.steps = 0
        """Training steps in finished stages."""

    def started(self, stream: Stream, stages_done: int) -> None:
        # Not before: a run refuses a folder that is not empty.
        self._try(self._open)

    def recorded(self, record: RunRecord) -> None:
        self.record = record
        self.epochs = sum(stage.epochs for stage in record.stages)
        self.steps = sum(stage.steps for stage in record.stages)
        if record.status != "running":
            done = record.status == "finished"
            self._try(partial(self._close, "success" if done else "failed"))

    def steps_done(self, stage: Stage, trace: Trace) -> None:
        last = trace.select(int(trace.epoch[-1]))
        before = self.steps + len(trace) - len(last)
        for done, numbers in step_numbers(last, POINTS):
            self._log(numbers, before + done)

    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        self._log(epoch_numbers(row), self.epochs + row.epoch)

    def stage_done(self, stage: Stage, record: StageRecord) -> None:
        assert self.record is not None
        # A method in closed form has no epochs.
        self._log(stage_numbers(self.record), self.epochs or stage.number)

    def _open(self) -> None:
        self.logger = TRACKERS[self.kind](self.config, self.folder)
        self.logger.log_hyperparams(self.config.described())

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        # Not every tracker allows brackets and letters other than a-z.
        named = {re.sub(r"[^\w./ -]", "_", name, flags=re.A): v for name, v in numbers.items()}
        if self.logger is not None:
            self._try(partial(self.logger.log_metrics, named, step))

    def _close(self, status: str) -> None:
        if self.logger is None:
            return
        self.logger.finalize(status)
        if self.kind == "wandb":  # Lightning does not close these runs
            self.logger.experiment.finish(exit_code=int(status != "success"))
        self.logger = None

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self.logger = None
            reason = str(error).partition("\n")[0] or type(error).__name__
            warnings.warn(
                f"{self.kind} gets no more numbers: {reason}", LostTrackerWarning, stacklevel=3
            )


def epoch_numbers(row: EpochRow) -> dict[str, float]:
    """Numbers of an epoch by the names that trackers show."""
    return {
        "stage": row.stage,
        "lr": row.lr,
        "images_per_second": row.images_per_second,
        "val/macro_f1": row.val_macro_f1,
        "val/accuracy": row.val_accuracy,
        **{f"loss/{name}": loss for name, loss in row.losses.items()},
        **{f"weight/{name}": weight for name, weight in row.weights.items()},
    }


def step_numbers(trace: Trace, points: int) -> Iterator[tuple[int, dict[str, float]]]:
    """At most `points` means of successive steps, each with the number of steps done."""
    columns = {f"step/loss/{name}": values for name, values in trace.losses.items()}
    columns |= {f"step/weight/{name}": values for name, values in trace.weights.items()}
    size = -(-len(trace) // points)
    for start in range(0, len(trace), size):
        end = min(start + size, len(trace))
        means = {name: float(values[start:end].nanmean()) for name, values in columns.items()}
        yield end, {name: mean for name, mean in means.items() if not math.isnan(mean)}


def stage_numbers(record: RunRecord) -> dict[str, float]:
    """Numbers of the last stage: a row of R, the metrics so far, drift and pool."""
    begun, metrics = record.stages[-1].begun, record.metrics.accuracy
    numbers: dict[str, float | None] = {
        f"R/accuracy/{domain.name}": value
        for domain, value in zip(record.stream.domains, record.R.accuracy[-1], strict=True)
    }
    if metrics is not None:
        numbers |= {f"metric/{name}": value for name, value in metrics}
    if begun.drift is not None:
        numbers |= {"drift/score": begun.drift.score, "drift/added": begun.drift.added}
    if begun.pool is not None:
        numbers |= {f"pool/{name}": count for name, count in begun.pool}
    return {name: value for name, value in numbers.items() if value is not None}
