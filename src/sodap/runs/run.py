"""One run: a method learns a stream, and a folder tells everything about it.

FOLDER/config.json    every setting, defaults written out
FOLDER/splits.csv     which file trains, validates and tests; to be used again with splits=
FOLDER/record.json    the command, environment, R, metrics, pool, drift, status
FOLDER/log.jsonl      one line an epoch
FOLDER/steps/         losses and learned weights of every step
FOLDER/evidence/      what a report shows besides (see `sodap.runs.evidence`)
FOLDER/stages/        the model after each stage but the last, where it is small
FOLDER/checkpoint/    where to go on after an interruption; gone when the run is finished
FOLDER/model/         what was learned
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sodap.backbones import native_size
from sodap.errors import SodapError
from sodap.learning import Learner, StageProgress, Training
from sodap.runs.callback import RunCallback
from sodap.runs.checkpoint import Checkpoint
from sodap.runs.config import RunConfig, difference
from sodap.runs.environment import environment, same_program
from sodap.runs.evidence import PendingWrite, evidence_of, model_of
from sodap.runs.run_log import RunLog
from sodap.runs.writer import Writer
from sodap.storage import folder_lock, is_left_over, read_json, sweep, write_json
from sodap.streams import Stage, Stream, load_stream, to_gpu_if_fits, union
from sodap.streams.splits import write_splits

SPLITS = "splits.csv"


TESTS_AT_HAND = 0.1
"""Of a GPU's free memory, for the test images: they stay there as long as the run lasts."""


class OtherProgramWarning(UserWarning):
    """A run goes on with other code than it began with."""


def run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    command: Sequence[str] = (),
    callback: RunCallback | None = None,
    stream: Stream | None = None,
    context: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Learn the stream and return the record, which `FOLDER/record.json` holds too.

    `stream` replaces the one that the configuration names; `context` is what else belongs in the
    record, such as the search that chose the settings. An interrupted run goes on with
    `resume=True` and ends with the same R as if nothing had happened.
    """
    callback = callback or RunCallback()
    native = native_size(config.backbone)  # first: a wrong name is refused as such
    finished = check_folder(config, folder, resume=resume)
    if finished is not None:
        Checkpoint(folder, Writer()).drop()  # left by an interruption in the last moment
        return finished
    check_weights(config)
    if stream is None:
        kept = folder / SPLITS  # of the run to go on with
        stream = load_stream(
            config.stream,
            config.image_size or native,
            data=config.data,
            split_seed=config.split_seed,
            splits=str(kept) if kept.exists() else config.splits,
            on_progress=callback.images_decoded,
        )
    return _Run(
        config, folder, stream, command, callback or RunCallback(), context or {}
    ).to_the_end()


def check_weights(config: RunConfig) -> None:
    """Before any decoding: a wrong path is a mistake of a second and should cost no more."""
    if config.weights not in ("pretrained", "random") and not Path(config.weights).is_file():
        raise SodapError(f"there is no weights file at {config.weights}")


def check_folder(config: RunConfig, folder: Path, *, resume: bool) -> dict[str, Any] | None:
    """The record of this very run if it is finished; an error if the folder is not ours to take."""
    path = folder / "config.json"
    if folder.exists() and not folder.is_dir():
        raise SodapError(f"cannot write the run to {folder}: there is a file of that name")
    if path.exists():
        changed = difference(read_json(path), config.described())
        if changed:
            raise SodapError(f"{folder} holds a run with another {changed}; choose another --out")
        finished = is_finished(folder)
        if not resume:
            if finished:
                raise SodapError(f"{folder} holds this run, finished; see `sodap report {folder}`")
            raise SodapError(f"{folder} holds this run already; go on with --resume")
        if finished:
            return read_json(folder / "record.json")
    elif folder.exists() and not all(map(is_left_over, folder.iterdir())):
        raise SodapError(f"{folder} is not empty and holds no run; choose another --out")
    return None


def is_finished(folder: Path) -> bool:
    path = folder / "record.json"
    return path.is_file() and read_json(path).get("status") == "finished"


class _Run:
    """A run under way: the learner, an account of what it has shown so far, and a way back."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        stream: Stream,
        command: Sequence[str],
        callback: RunCallback,
        context: Mapping[str, Any],
    ) -> None:
        self.folder, self.stream, self.callback = folder, stream, callback
        self.evidence, self.keep_stages = config.evidence, config.keep_stages
        self.learner = Learner(
            stream.classes,
            method=config.method,
            options=config.options,
            backbone=config.backbone,
            weights=config.weights,
            image_size=config.image_size,
            training=_training(config, stream),
            seed=config.seed,
            device=config.device,
            precision=config.precision,
        )
        tests = [domain.test for domain in stream.tested]
        tests = to_gpu_if_fits(tests, self.learner.runtime.device, share=TESTS_AT_HAND)
        self.tested = [replace(d, test=test) for d, test in zip(stream.tested, tests, strict=True)]
        self.environments = [environment(type(self.learner.method))]
        """What this run has run in, the present one last."""
        header = {
            "command": list(command),
            "config": config.described(),
            "environment": self.environments[-1],
            "stream": _describe(stream),
            "backbone": self.learner.metadata()["backbone"],
            **context,
        }
        self.writer = Writer()
        self.account = RunLog(folder, header, self.writer)
        self.checkpoint = Checkpoint(folder, self.writer)

    def to_the_end(self) -> dict[str, Any]:
        # Only now, with every input read and found good, is anything written.
        with folder_lock(self.folder):
            if is_finished(self.folder):  # by whoever had the folder until now
                return read_json(self.folder / "record.json")
            return self._alone()

    def _alone(self) -> dict[str, Any]:
        sweep(self.folder)
        write_json(self.folder / "config.json", self.account.header["config"])
        if self.stream.rows:
            write_splits(self.folder / SPLITS, self.stream.rows)
        progress = self._resume()
        self.callback.started(self.stream, len(self.account.stages))
        try:
            self._write("running", progress=progress)
            for stage in list(self.stream.stages())[len(self.account.stages) :]:
                self._learn(stage, progress)
                progress = None
            self.writer.wait()
            self.learner.save(self.folder / "model")
        except KeyboardInterrupt:
            self._write("interrupted", "stopped by the user")
            raise
        except Exception as error:
            self._write("failed", f"{type(error).__name__}: {error}")
            raise
        record = self._write("finished")
        self.checkpoint.drop()
        return record

    def _learn(self, stage: Stage, resumed: StageProgress | None) -> None:
        began = time.perf_counter()
        device = self.learner.runtime.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

        def batch_done(epoch: int, step: int, steps: int) -> None:
            self.writer.check()  # an epoch may be long
            self.callback.batch_done(stage, epoch, step, steps)

        def epoch_done(progress: StageProgress) -> None:
            if self.checkpoint.is_due():
                self._checkpoint(progress)
            self._write("running", progress=progress)
            self.callback.steps_done(stage, progress.trace)
            self.callback.epoch_done(stage, progress.history[-1])

        so_far = self.stream.domains[: stage.number]
        progress = self.learner.learn(
            union(so_far) if self.learner.method.learns_all_domains else stage.domain,
            resumed=resumed,
            on_epoch=epoch_done,
            on_batch=batch_done,
        )
        self.writer.wait()  # nothing is tested of a stage whose epochs are not on disk
        looked = time.perf_counter()
        seen = [self.learner.evaluate(domain) for domain in self.tested]
        evaluation = {
            "images": sum(int(scores.confusion.sum()) for scores in seen),
            "seconds": time.perf_counter() - looked,
        }
        self.account.confusions.append([scores.confusion.tolist() for scores in seen])
        self.account.stages.append(
            {
                "stage": stage.number,
                "domain": stage.domain.name,
                "epochs": progress.epoch,
                "steps": len(progress.trace),
                "best_epoch": progress.best_epoch,
                "best_val_macro_f1": progress.best_score,
                "begun": progress.begun,
                "ended": progress.ended,
                "trainable_parameters": self.learner.method.trainable_count(),
                "stored": [vars(asset) for asset in self.learner.stored()],
                "seconds": time.perf_counter() - began,
                "evaluation": evaluation,
                "peak_gpu_bytes": (
                    torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
                ),
                "history": progress.history,
            }
        )
        findings: list[PendingWrite] = []
        if self.evidence:
            predictions, pool = [scores.predictions for scores in seen], progress.ended.get("pool")
            findings.append(
                evidence_of(self.folder, self.learner, stage, self.tested, predictions, pool)
            )
        if self.keep_stages and stage.number < len(self.stream):
            findings += model_of(self.folder, self.learner, stage.number)
        self._checkpoint(None, findings)
        self._write("running")
        self.callback.stage_done(stage, self.account.stages[-1])

    # ------------------------------------------------------------------ files

    def _checkpoint(
        self, progress: StageProgress | None, findings: Sequence[PendingWrite] = ()
    ) -> None:
        """Where to go on, in the midst of a stage or after it with what was found at its end."""
        tensors = {f"method.{key}": value for key, value in self.learner.method.state().items()}
        facts: dict[str, Any] = {
            "confusions": self.account.confusions,
            "stages": self.account.stages,
            "learned_from": self._learned_from(),
            "environments": self.environments,
        }
        if progress is not None:
            tensors |= {f"progress.{key}": value for key, value in progress.tensors().items()}
            facts["progress"] = progress.metadata()
        self.checkpoint.write(tensors, facts, [each.write for each in findings])

    def _resume(self) -> StageProgress | None:
        """Take up the last checkpoint, if there is one."""
        try:
            found = self.checkpoint.read()
        except SodapError as error:
            raise SodapError(
                f"{error}; delete {self.checkpoint.folder} to begin this run anew"
            ) from error
        if found is None:
            return None
        tensors, facts = found
        for what, now in self._learned_from().items():
            before = facts["learned_from"].get(what)
            if before != now:
                raise SodapError(
                    f"{self.folder} was begun with another {what} and cannot go on with this one; "
                    f"choose another --out to begin anew"
                )
        self._admit(facts.get("environments") or self._environment_before())
        parts: dict[str, dict[str, Any]] = {"method": {}, "progress": {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value.to(self.learner.runtime.device)
        self.account.confusions, self.account.stages = facts["confusions"], facts["stages"]
        under_way = facts.get("progress")
        stage = len(self.account.stages) + (under_way is not None)
        self.learner.restore(parts["method"], stage, len(self.account.stages))
        return StageProgress.restore(under_way, parts["progress"]) if under_way else None

    def _admit(self, environments: Sequence[Mapping[str, Any]]) -> None:
        """A run may go on with other code, say with a mistake mended; its record has to say so."""
        now = self.environments[-1]
        earlier = [dict(each) for each in environments]
        self.environments = earlier if same_program(earlier[-1], now) else [*earlier, now]
        others = [each for each in earlier if not same_program(each, now)]
        if others:
            self.account.header["earlier_environments"] = others
            what = f"sodap {others[0]['sodap']}, commit {others[0].get('commit') or 'unknown'}"
            warnings.warn(
                OtherProgramWarning(
                    f"{self.folder} was learned in part with other code or packages ({what}); it "
                    f"goes on, and its record says so"
                ),
                stacklevel=2,
            )

    def _environment_before(self) -> list[dict[str, Any]]:
        """For a checkpoint that does not tell: what the record tells, which is the last one."""
        path = self.folder / "record.json"
        known = read_json(path).get("environment") if path.is_file() else None
        return [known or self.environments[-1]]

    def _learned_from(self) -> dict[str, Any]:
        """What must be the same when a run goes on, besides its settings."""
        return {
            "backbone": self.account.header["backbone"]["sha256"],
            "stream": {k: v for k, v in self.account.header["stream"].items() if k != "notes"},
            "device": self.learner.runtime.device.type,
        }

    def _write(
        self, status: str, note: str | None = None, progress: StageProgress | None = None
    ) -> dict[str, Any]:
        record = self.account.write(status, note, progress)
        self.callback.recorded(record)
        return record


def _training(config: RunConfig, stream: Stream) -> Training:
    """The training that was asked for, with the stream's own views unless it names others."""
    views = config.training.augmentation or stream.augmentation
    return config.training.model_copy(update={"augmentation": views})


def _describe(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "classes": list(stream.classes),
        "notes": list(stream.notes),
        "domains": [
            {
                "name": domain.name,
                "counts": {
                    kind: split.labels.bincount(minlength=len(stream.classes)).tolist()
                    for kind, split in domain.splits()
                },
            }
            for domain in stream.tested
        ],
    }
