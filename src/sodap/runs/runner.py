"""One run: a method learns a stream, and everything about it is written to a folder.

FOLDER/config.json    all settings, including defaults
FOLDER/splits.csv     which file trains, validates and tests; can be reused with splits=
FOLDER/skipped.csv    unreadable files that were left out, with skip_unreadable=true
FOLDER/record.json    command, environment, R, metrics, drift, status (see `sodap.runs.record`)
FOLDER/log.jsonl      one line an epoch
FOLDER/steps/         losses and learned weights of every step
FOLDER/evidence/      data for the report (see `sodap.runs.evidence`)
FOLDER/stages/        the model after each stage but the last, if it is small
FOLDER/checkpoint/    state to resume from; deleted when the run is finished
FOLDER/model/         the trained model
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sodap.backbones import fetch_weights, native_size
from sodap.errors import SodapError
from sodap.learning import Learner, Scores, StageProgress, Training
from sodap.runs.answers import encode
from sodap.runs.callback import RunCallback
from sodap.runs.checkpoint import Checkpoint, CheckpointInfo, Origin
from sodap.runs.config import RunConfig, check_backbone_chosen, check_weights, difference
from sodap.runs.environment import environment
from sodap.runs.evidence import pending_evidence, pending_model
from sodap.runs.reading import checked, read_record
from sodap.runs.record import (
    Environment,
    EvaluationTime,
    MetricsByMeasure,
    ResultMatrices,
    RunContext,
    RunRecord,
    StageRecord,
    Status,
)
from sodap.runs.run_log import RunLog, epoch_rows
from sodap.runs.stream import SPLITS, comparable, load_run_stream, stream_info
from sodap.runs.writer import PendingWrite, Writer
from sodap.storage import delete_temporary_files, folder_lock, is_temporary, read_json, write_json
from sodap.streams import Stage, Stream, to_gpu_if_fits, union
from sodap.streams.splits import write_splits
from sodap.streams.unreadable import SKIPPED, write_skipped

TEST_IMAGES_SHARE = 0.1
"""Share of a GPU's free memory for the test images, which stay there for the whole run."""


class OtherProgramWarning(UserWarning):
    """A run is resumed with other code than it began with."""


def run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    command: Sequence[str] = (),
    callback: RunCallback | None = None,
    stream: Stream | None = None,
    context: RunContext | None = None,
) -> RunRecord:
    """Learn the stream and return the record, which is also `FOLDER/record.json`.

    `stream` replaces the one that the configuration names; `context` says how a grid started the
    run. With `resume=True` an interrupted run continues and ends with the same R as if it had not
    been interrupted.
    """
    callback = callback or RunCallback()
    native_size(config.backbone)  # first, so that a wrong name is reported as such
    finished = check_folder(config, folder, resume=resume)
    if finished is not None:
        Checkpoint(folder, Writer()).delete()  # left if the run was killed at the very end
        return finished
    check_weights(config.weights)
    fetch_weights(config.backbone, config.weights)
    if stream is None:
        check_backbone_chosen(config)
        stream = load_run_stream(config, folder, callback.images_decoded)
    return _Run(config, folder, stream, command, callback, context or RunContext()).learn()


def check_folder(config: RunConfig, folder: Path, *, resume: bool) -> RunRecord | None:
    """Raise an error unless the run may use the folder; return the record if it is finished."""
    path = folder / "config.json"
    if folder.exists() and not folder.is_dir():
        raise SodapError(f"cannot write the run to {folder}: it is a file")
    if path.exists():
        before = checked(RunConfig, read_json(path), path, "configuration").model_dump(mode="json")
        # Leaving out unreadable files changes nothing about the files that were read.
        before["skip_unreadable"] = config.skip_unreadable
        changed = difference(before, config.described())
        if changed:
            raise SodapError(f"{folder} holds a run with another {changed}; choose another --out")
        finished = finished_record(folder)
        if resume:
            return finished
        if finished is not None:
            raise SodapError(f"{folder} holds this run, finished; see `sodap report {folder}`")
        raise SodapError(f"{folder} holds this run already; continue it with --resume")
    if folder.exists() and not all(map(is_temporary, folder.iterdir())):
        raise SodapError(f"{folder} is not empty and holds no run; choose another --out")
    return None


def finished_record(folder: Path) -> RunRecord | None:
    """The record of the run in a folder if it is finished, else None."""
    path = folder / "record.json"
    record = read_record(path) if path.is_file() else None
    return record if record is not None and record.status == "finished" else None


class _Run:
    """A run in progress."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        stream: Stream,
        command: Sequence[str],
        callback: RunCallback,
        context: RunContext,
    ) -> None:
        self.config, self.folder, self.stream, self.callback = config, folder, stream, callback
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
        self.learner.ranges = stream.ranges
        self.device = self.learner.runtime.device
        tests = [domain.test for domain in stream.tested]
        tests = to_gpu_if_fits(tests, self.device, share=TEST_IMAGES_SHARE)
        self.tested = [replace(d, test=test) for d, test in zip(stream.tested, tests, strict=True)]
        self.environments = [environment(type(self.learner.method))]
        """Programs that the run has run with, the present one last."""
        no_results = ResultMatrices(accuracy=[], macro_f1=[])
        record = RunRecord(
            **dict(context),
            command=list(command),
            config=config.resolved(),
            environment=self.environments[-1],
            stream=stream_info(stream),
            backbone=self.learner.metadata()["backbone"],
            status="running",
            R=no_results,
            metrics=MetricsByMeasure.of(no_results),
            stages=[],
        )
        self.writer = Writer()
        self.log = RunLog(folder, record, self.writer, stream)
        self.checkpoint = Checkpoint(folder, self.writer)

    def learn(self) -> RunRecord:
        """Learn all stages that are not finished."""
        # Nothing is written before this point, where all input has been read and checked.
        with folder_lock(self.folder):
            finished = finished_record(self.folder)  # by the process that held the lock before
            return self._learn() if finished is None else finished

    def _learn(self) -> RunRecord:
        delete_temporary_files(self.folder)
        config = self.log.record.config.model_dump(mode="json")
        write_json(self.folder / "config.json", config)
        if self.stream.rows:
            write_splits(self.folder / SPLITS, self.stream.rows)
        if self.stream.skipped:
            write_skipped(self.folder / SKIPPED, self.stream.skipped)
        progress = self._resume()
        self.callback.started(self.stream, len(self.log.stages))
        try:
            self._write_log("running", progress=progress)
            for stage in list(self.stream.stages())[len(self.log.stages) :]:
                self._learn_stage(stage, progress)
                progress = None
            self.writer.wait()
            self.learner.save(self.folder / "model")
        except KeyboardInterrupt:
            self._write_log("interrupted", "stopped by the user")
            raise
        except Exception as error:
            self._write_log("failed", f"{type(error).__name__}: {error}")
            raise
        record = self._write_log("finished")
        self.checkpoint.delete()
        return record

    def _learn_stage(self, stage: Stage, resumed: StageProgress | None) -> None:
        began = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

        def batch_done(epoch: int, step: int, steps: int) -> None:
            self.writer.check()  # an epoch may be long
            self.callback.batch_done(stage, epoch, step, steps)

        def epoch_done(progress: StageProgress) -> None:
            if self.checkpoint.is_due():
                self._write_checkpoint(progress)
            self._write_log("running", progress=progress)
            self.callback.steps_done(stage, progress.trace)
            self.callback.epoch_done(stage, epoch_rows(progress)[-1])

        so_far = self.stream.domains[: stage.number]
        progress = self.learner.learn(
            union(so_far) if self.learner.method.learns_all_domains else stage.domain,
            resumed=resumed,
            on_epoch=epoch_done,
            on_batch=batch_done,
            progress=False,  # the callback shows it
        )
        self.writer.wait()  # test a stage only when its epochs are on disk
        began_tests = time.perf_counter()
        scores = [self.learner.evaluate(domain) for domain in self.tested]
        evaluation = EvaluationTime(
            images=sum(int(each.confusion.sum()) for each in scores),
            seconds=time.perf_counter() - began_tests,
        )
        record = self._stage_record(stage, progress, evaluation, time.perf_counter() - began)
        confusions = [each.confusion.tolist() for each in scores]
        answers = [encode(each.predictions.classes.cpu().numpy()) for each in scores]
        self.log.finish_stage(record, epoch_rows(progress), confusions, answers)
        self._write_checkpoint(None, self._pending(stage, record, scores))
        self._write_log("running")
        self.callback.stage_done(stage, record)

    def _stage_record(
        self, stage: Stage, progress: StageProgress, evaluation: EvaluationTime, seconds: float
    ) -> StageRecord:
        stored = [vars(asset) for asset in self.learner.stored()]
        on_gpu = self.device.type == "cuda"
        return StageRecord.model_validate(
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
                "stored": stored,
                "stored_bytes": sum(asset["bytes"] for asset in stored),
                "seconds": seconds,
                "evaluation": evaluation,
                "peak_gpu_bytes": torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
            }
        )

    # ------------------------------------------------------------------ files

    def _pending(
        self, stage: Stage, record: StageRecord, scores: Sequence[Scores]
    ) -> list[PendingWrite]:
        """Files that a finished stage leaves besides the record."""
        pending: list[PendingWrite] = []
        if self.config.evidence:
            predictions, pool = [each.predictions for each in scores], record.ended.pool
            pending.append(
                pending_evidence(self.folder, self.learner, stage, self.tested, predictions, pool)
            )
        if self.config.keep_stages and stage.number < len(self.stream):
            pending += pending_model(self.folder, self.learner, stage.number)
        return pending

    def _write_checkpoint(
        self, progress: StageProgress | None, first: Sequence[PendingWrite] = ()
    ) -> None:
        """Write a checkpoint within a stage, or after a stage and the files that it leaves."""
        tensors = {f"method.{key}": value for key, value in self.learner.method.state().items()}
        if progress is not None:
            tensors |= {f"progress.{key}": value for key, value in progress.tensors().items()}
        info = CheckpointInfo(
            confusions=self.log.confusions,
            answers=self.log.answers,
            stages=self.log.stages,
            epochs=self.log.epochs,
            origin=self._origin(),
            environments=self.environments,
            progress=progress.metadata() if progress is not None else None,
        )
        self.checkpoint.write(tensors, info, first)

    def _resume(self) -> StageProgress | None:
        """Continue from the last checkpoint, if there is one; return the stage under way."""
        try:
            found = self.checkpoint.read()
        except SodapError as error:
            raise SodapError(
                f"{error}; delete {self.checkpoint.folder} to start this run again"
            ) from error
        if found is None:
            return None
        tensors, info = found
        for (what, before), (_, now) in zip(info.origin, self._origin(), strict=True):
            if before != now:
                raise SodapError(
                    f"{self.folder} was begun with another {what} and cannot continue with this "
                    f"one; choose another --out to start again"
                )
        self._note_programs(info.environments)
        parts: dict[str, dict[str, torch.Tensor]] = {"method": {}, "progress": {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value.to(self.device)
        for place, (record, confusions) in enumerate(
            zip(info.stages, info.confusions, strict=True)
        ):
            rows = [row for row in info.epochs if row.stage == record.stage]
            answers = info.answers[place] if len(info.answers) == len(info.stages) else None
            self.log.finish_stage(record, rows, confusions, answers)
        done = len(info.stages)
        domains = [stage.domain for stage in info.stages]
        self.learner.restore(parts["method"], done + (info.progress is not None), done, domains)
        if info.progress is None:
            return None
        return StageProgress.restore(info.progress, parts["progress"])

    def _note_programs(self, earlier: Sequence[Environment]) -> None:
        """Record the other programs of a resumed run, which may be resumed after a bug fix."""
        if not earlier:
            return
        now = self.environments[-1]
        self.environments = [*earlier, *([] if earlier[-1].same_program(now) else [now])]
        others = [each for each in earlier if not each.same_program(now)]
        if others:
            self.log.record = self.log.record.model_copy(update={"earlier_environments": others})
            what = f"sodap {others[0].sodap}, commit {others[0].commit or 'unknown'}"
            warnings.warn(
                OtherProgramWarning(
                    f"part of {self.folder} was learned with other code or packages ({what}); the "
                    f"run continues, and its record says so"
                ),
                stacklevel=2,
            )

    def _origin(self) -> Origin:
        record = self.log.record
        assert record.backbone is not None
        return Origin(
            backbone=record.backbone.sha256,
            stream=comparable(record.stream),
            device=self.device.type,
        )

    def _write_log(
        self, status: Status, note: str | None = None, progress: StageProgress | None = None
    ) -> RunRecord:
        record = self.log.write(status, note, progress)
        self.callback.recorded(record)
        return record


def _training(config: RunConfig, stream: Stream) -> Training:
    """Training settings, with the augmentation of the stream if the user names none."""
    augmentation = config.training.augmentation or stream.augmentation
    return config.training.model_copy(update={"augmentation": augmentation})
