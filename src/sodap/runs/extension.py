"""`extend`: learn domains that were added to the stream of a finished run, as its next stages.

The result is the same as if the domains had been there from the start. For that, the models of all
earlier stages are tested on the new domains, which gives R the new columns. Then the run is resumed
from a checkpoint with these columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sodap.errors import SodapError
from sodap.execution import ClassPredictions
from sodap.learning import load
from sodap.runs.answers import encode
from sodap.runs.callback import RunCallback
from sodap.runs.checkpoint import Checkpoint, CheckpointInfo, Origin
from sodap.runs.composition import FILE as COMPOSITION
from sodap.runs.config import RunConfig
from sodap.runs.evidence import pending_model, prediction_tensors
from sodap.runs.probes import probe_files
from sodap.runs.reading import read_log
from sodap.runs.record import RunContext, RunRecord
from sodap.runs.run_log import RunLog
from sodap.runs.runner import check_folder, run
from sodap.runs.stream import SPLITS, comparable, load_run_stream, stream_info
from sodap.runs.writer import PendingWrite, Writer
from sodap.storage import folder_lock, has_state, load_state
from sodap.streams import Domain, Stream
from sodap.streams.splits import write_splits


def extend(
    config: RunConfig,
    folder: Path,
    *,
    command: Sequence[str] = (),
    callback: RunCallback | None = None,
) -> RunRecord:
    """Learn the domains that the stream has gained since the finished run in `folder` began.

    The record grows by a stage and a domain for each of them. Returns it unchanged if there are
    none.
    """
    callback = callback or RunCallback()
    record = check_folder(config, folder, resume=True)
    if record is None:
        raise SodapError(f"{folder} holds no finished run; only a finished one can be extended")
    stream = load_run_stream(config, folder, callback.images_decoded, with_new=True)
    new = stream.domains[len(record.stream.domains) :]
    if new and not stream.unseen:
        _refuse_changed(folder, record, stream)
        with folder_lock(folder):
            _reopen(config, folder, record, stream, new)
        context = RunContext.model_validate(record.model_dump(include=set(RunContext.model_fields)))
        record = run(
            config,
            folder,
            resume=True,
            command=command,
            callback=callback,
            stream=stream,
            context=context,
        )
    return record


def _refuse_changed(folder: Path, record: RunRecord, stream: Stream) -> None:
    """Raise an error if images of the domains that the run has learned are gone or changed sides.

    Its results on these images would be compared with those on other ones.
    """
    now = {domain.name: domain for domain in stream_info(stream).domains}
    for domain in record.stream.domains:
        if now[domain.name].counts != domain.counts:
            raise SodapError(
                f"{domain.name} has other images than when the run in {folder} learned it; bring "
                f"back the images that {SPLITS} lists, or begin a new run with another --out"
            )


def _reopen(
    config: RunConfig, folder: Path, record: RunRecord, stream: Stream, new: Sequence[Domain]
) -> None:
    """Turn a finished run into an interrupted one of the longer stream.

    The record is written last. A process that is killed before leaves the finished run.
    """
    models = _models(folder, len(record.stages))
    learner = load(folder, weights=config.weights, device=config.device, precision=config.precision)
    for model in pending_model(folder, learner, len(record.stages)) if config.keep_stages else []:
        model.write()  # FOLDER/model will be that of the new last stage
    confusions = [list(row) for row in record.confusions]
    answers = [
        list(texts) for texts in zip(*(each.answers for each in record.answers), strict=True)
    ]
    for number, home in enumerate(models, start=1):
        learner.restore(load_state(home, "model")[0], number, number)
        scores = [learner.evaluate(domain) for domain in new]
        confusions[number - 1] += [each.confusion.tolist() for each in scores]
        predictions = [each.predictions for each in scores]
        if answers:
            answers[number - 1] += [encode(each.classes.cpu().numpy()) for each in predictions]
        _add_predictions(folder, number, len(record.stream.domains), new, predictions)
    info = stream_info(stream)
    writer = Writer()
    log = RunLog(folder, record.model_copy(update={"stream": info}), writer, stream)
    epochs, _ = read_log(folder / "log.jsonl")
    for stage, row in zip(record.stages, confusions, strict=True):
        own = [each for each in epochs if each.stage == stage.stage]
        log.finish_stage(stage, own, row, answers[stage.stage - 1] if answers else None)
    assert record.backbone is not None
    assert record.environment is not None
    Checkpoint(folder, writer).write(
        {f"method.{key}": value for key, value in learner.method.state().items()},
        CheckpointInfo(
            confusions=log.confusions,
            answers=log.answers,
            stages=log.stages,
            epochs=log.epochs,
            origin=Origin(
                backbone=record.backbone.sha256,
                stream=comparable(info),
                device=learner.runtime.device.type,
            ),
            environments=[*record.earlier_environments, record.environment],
        ),
    )
    writer.wait()
    for stale in (folder / COMPOSITION, *probe_files(folder)):  # of the domains so far
        stale.unlink(missing_ok=True)
    write_splits(folder / SPLITS, stream.rows)
    log.write("interrupted", f"not yet learned: {', '.join(domain.name for domain in new)}")


def _models(folder: Path, stages: int) -> list[Path]:
    """The folder of each stage's model."""
    homes = [folder / "stages" / str(number) for number in range(1, stages)]
    for number, home in enumerate(homes, start=1):
        if not has_state(home, "model"):
            raise SodapError(
                f"{folder} has not kept the model of stage {number}, so that it cannot be tested "
                f"on the new domain; learn the domain with sodap.load and learn instead"
            )
    return [*homes, folder / "model"]


def _add_predictions(
    folder: Path,
    stage: int,
    known: int,
    new: Sequence[Domain],
    predictions: Sequence[ClassPredictions],
) -> None:
    """Add the predictions on the new domains to the evidence of a stage, if there is any."""
    home, name = folder / "evidence", f"stage-{stage}"
    if not has_state(home, name):
        return
    tensors, metadata = load_state(home, name)
    for index, (domain, found) in enumerate(zip(new, predictions, strict=True), start=known):
        tensors |= prediction_tensors(index, domain.test, found)
    PendingWrite(home, name, tensors, metadata).write()
