"""Schema of the results that are kept for good: a record without what follows from the rest."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from sodap.errors import SodapError
from sodap.runs.answers import StoredAnswers
from sodap.runs.config import RunConfig
from sodap.runs.record import (
    BackboneInfo,
    Environment,
    MetricsByMeasure,
    PoolInfo,
    ResultMatrices,
    RunRecord,
    Schema,
    StageInfo,
    StageRecord,
    StreamInfo,
    Throughput,
)


class KeptStage(Schema):
    """A stage in a few numbers."""

    domain: str
    epochs: int
    pool: PoolInfo | None
    drift: float | None
    """The drift score."""
    seconds: float
    peak_gpu_bytes: int | None
    trainable_parameters: int
    stored_bytes: int

    @classmethod
    def of(cls, stage: StageRecord) -> KeptStage:
        drift = stage.begun.drift
        own = {"pool": stage.ended.pool, "drift": None if drift is None else drift.score}
        return cls.model_validate(dict(stage) | own | {"seconds": round(stage.seconds, 1)})

    def as_record(self, number: int) -> StageRecord:
        own = {"stage": number, "ended": StageInfo(pool=self.pool)}
        return StageRecord.model_validate(dict(self) | own)


class KeptResult(Schema):
    """Content of `results/STREAM/METHOD-sSEED.json`."""

    command: list[str]
    variant: str | None = None
    config: RunConfig
    environment: Environment
    backbone: BackboneInfo
    stream: StreamInfo
    jobs: int = 1
    throughput: Throughput
    R: ResultMatrices
    stages: list[KeptStage]
    answers: list[StoredAnswers] = Field([])

    @classmethod
    def of(cls, record: RunRecord) -> KeptResult:
        """The result of a finished run."""
        if record.status != "finished":
            raise SodapError(f"a run that is {record.status} is not a result")
        program, *arguments = record.command
        own = {
            "command": [Path(program).name, *arguments],
            "R": record.R.model_copy(update={"kappa": []}),
            "stages": [KeptStage.of(stage) for stage in record.stages],
        }
        return cls.model_validate(dict(record) | own)

    def as_record(self) -> RunRecord:
        """The record, as far as it is known."""
        classes = len(self.stream.classes)
        by_domain = [each.decoded().confusions(classes) for each in self.answers]
        own = {
            "status": "finished",
            "metrics": MetricsByMeasure.of(self.R),
            "confusions": [
                [matrix.tolist() for matrix in row] for row in zip(*by_domain, strict=True)
            ],
            "stages": [stage.as_record(number) for number, stage in enumerate(self.stages, 1)],
        }
        return RunRecord.model_validate(dict(self) | own)
