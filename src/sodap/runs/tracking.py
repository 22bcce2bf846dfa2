"""A run in TensorBoard, MLflow or Weights & Biases, for those who keep their experiments there.

Nothing is sent anywhere unless it is asked for. The run's own folder stays the full account; what
goes to a tracker is a copy of its numbers, through Lightning's loggers:

loss/NAME, weight/NAME, val/macro_f1, val/accuracy, lr, images_per_second    each epoch
R/accuracy/DOMAIN, drift/score, drift/added, pool/..., metric/...            each stage
step/loss/NAME, step/weight/NAME                                             training steps

The step is the number of epochs since the run began, over all stages; of stages where a method has
no epochs. For names that begin with `step/` it is the number of training steps. They are told when
an epoch is over, at most `POINTS` of them, each the mean of the steps since the one before. A run
that is resumed goes on in the same place in TensorBoard, and as a new run with the steps that were
left elsewhere.
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
from sodap.streams import Stage, Stream

POINTS = 50
"""Of an epoch's steps: a server across the world is asked once for each."""


class LostTrackerWarning(UserWarning):
    """A tracker does not answer. Learning counts for more than an account of it."""


class Logger(Protocol):
    """What is used of Lightning's loggers."""

    @property
    def experiment(self) -> Any: ...

    def log_hyperparams(self, params: dict[str, Any]) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...

    def finalize(self, status: str) -> None: ...


def _tensorboard(config: RunConfig, folder: Path) -> Logger:
    """Into `FOLDER/tensorboard`; point `tensorboard --logdir` at a folder of many runs."""
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger

    logger: Logger = TensorBoardLogger(
        folder / "tensorboard", name="", version="", default_hp_metric=False
    )
    # Its table of settings wants a final score with them; as text they are there from the start.
    settings = json.dumps(config.described(), indent=1)
    logger.experiment.add_text("config", "    " + settings.replace("\n", "\n    "))
    return logger


def _mlflow(config: RunConfig, folder: Path) -> Logger:
    """To the server that MLflow's own variable names; else into a database in the run's folder."""
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
    """To the account that `wandb login` chose; with `WANDB_MODE=offline` into the run's folder."""
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
    """Forwards what a run shows to one logger."""

    def __init__(self, kind: str, config: RunConfig, folder: Path) -> None:
        if kind not in TRACKERS:
            names = ", ".join(TRACKERS)
            raise SodapError(f"there is no log called '{kind}'; there are: {names}")
        if find_spec(kind) is None:
            raise SodapError(f"--log {kind} needs another package: pip install 'sodap[track]'")
        self.kind, self.config, self.folder = kind, config, folder
        self.logger: Logger | None = None
        self.record: Mapping[str, Any] = {}
        self.epochs = 0
        """Of the stages that are over."""
        self.steps = 0
        """Of these, too."""

    def started(self, stream: Stream, stages_done: int) -> None:
        # Only now does the folder belong to the run; before, a file in it would be in the way.
        self._try(self._open)

    def recorded(self, record: Mapping[str, Any]) -> None:
        self.record = record
        self.epochs = sum(stage["epochs"] for stage in record["stages"])
        self.steps = sum(stage.get("steps", 0) for stage in record["stages"])
        if record["status"] != "running":
            done = record["status"] == "finished"
            self._try(partial(self._close, "success" if done else "failed"))

    def steps_done(self, stage: Stage, trace: Trace) -> None:
        last = trace.select(int(trace.epoch[-1]))
        before = self.steps + len(trace) - len(last)
        for done, numbers in step_numbers(last, POINTS):
            self._log(numbers, before + done)

    def epoch_done(self, stage: Stage, row: Mapping[str, Any]) -> None:
        self._log(epoch_numbers(row), self.epochs + row["epoch"])

    def stage_done(self, stage: Stage, record: Mapping[str, Any]) -> None:
        self._log(stage_numbers(self.record), self.epochs or stage.number)  # none in closed form

    def _open(self) -> None:
        self.logger = TRACKERS[self.kind](self.config, self.folder)
        self.logger.log_hyperparams(self.config.described())

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        # Letters of other scripts and brackets are not allowed everywhere.
        named = {re.sub(r"[^\w./ -]", "_", name, flags=re.A): v for name, v in numbers.items()}
        if self.logger is not None:
            self._try(partial(self.logger.log_metrics, named, step))

    def _close(self, status: str) -> None:
        if self.logger is None:
            return
        self.logger.finalize(status)
        if self.kind == "wandb":  # Lightning leaves its runs open, for more to come
            self.logger.experiment.finish(exit_code=int(status != "success"))
        self.logger = None

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self.logger = None
            reason = str(error).partition("\n")[0] or type(error).__name__
            warnings.warn(
                f"{self.kind} is left out from here on: {reason}", LostTrackerWarning, stacklevel=3
            )


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

    def epoch_done(self, stage: Stage, row: Mapping[str, Any]) -> None:
        for each in self.callbacks:
            each.epoch_done(stage, row)

    def stage_done(self, stage: Stage, record: Mapping[str, Any]) -> None:
        for each in self.callbacks:
            each.stage_done(stage, record)

    def recorded(self, record: Mapping[str, Any]) -> None:
        for each in self.callbacks:
            each.recorded(record)


def epoch_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of the log by the names that trackers show."""
    return {
        "stage": row["stage"],
        "lr": row["lr"],
        "images_per_second": row["images_per_second"],
        "val/macro_f1": row["val_macro_f1"],
        "val/accuracy": row["val_accuracy"],
        **{f"loss/{name}": loss for name, loss in row["losses"].items()},
        **{f"weight/{name}": weight for name, weight in row["weights"].items()},
    }


def step_numbers(trace: Trace, points: int) -> Iterator[tuple[int, dict[str, float]]]:
    """At most `points` means of steps that follow each other, and how many steps are done then."""
    columns = {f"step/loss/{name}": values for name, values in trace.losses.items()}
    columns |= {f"step/weight/{name}": values for name, values in trace.weights.items()}
    size = -(-len(trace) // points)
    for start in range(0, len(trace), size):
        end = min(start + size, len(trace))
        means = {name: float(values[start:end].nanmean()) for name, values in columns.items()}
        yield end, {name: mean for name, mean in means.items() if not math.isnan(mean)}


def stage_numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """What the last stage added to the record: a row of R, the metrics so far, drift and pool."""
    names = [domain["name"] for domain in record["stream"]["domains"]]
    begun = record["stages"][-1]["begun"]
    drift = begun.get("drift")
    metrics = record["metrics"]["accuracy"]
    return {
        **{
            f"R/accuracy/{name}": value
            for name, value in zip(names, record["R"]["accuracy"][-1], strict=True)
        },
        **{f"metric/{name}": value for name, value in metrics.items() if value is not None},
        **({"drift/score": drift["score"], "drift/added": drift["added"]} if drift else {}),
        **{f"pool/{name}": count for name, count in begun.get("pool", {}).items()},
    }
