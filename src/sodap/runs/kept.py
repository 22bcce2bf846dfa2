"""Schema of the results that are kept for good: a record without what follows from the rest."""

from __future__ import annotations

from pathlib import Path

from sodap.errors import SodapError
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


class KeptResult(Schema):
    """`results/STREAM/METHOD-sSEED.json`"""

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

    @classmethod
    def of(cls, record: RunRecord) -> KeptResult:
        """The result of a finished run."""
        if record.status != "finished" or record.environment is None or record.backbone is None:
            raise SodapError(f"a run that is {record.status} is not a result")
        program, *arguments = record.command
        return cls(
            command=[Path(program).name, *arguments],
            variant=record.variant,
            config=record.config,
            environment=record.environment,
            backbone=record.backbone,
            stream=record.stream,
            jobs=record.jobs,
            throughput=record.throughput,
            R=record.R.model_copy(update={"kappa": []}),
            stages=[
                KeptStage(
                    domain=stage.domain,
                    epochs=stage.epochs,
                    pool=stage.ended.pool,
                    drift=None if stage.begun.drift is None else stage.begun.drift.score,
                    seconds=round(stage.seconds, 1),
                    peak_gpu_bytes=stage.peak_gpu_bytes,
                    trainable_parameters=stage.trainable_parameters,
                    stored_bytes=stage.stored_bytes,
                )
                for stage in record.stages
            ],
        )

    def as_record(self) -> RunRecord:
        """The record, as far as it is known."""
        shared = self.model_fields_set - {"stages"}
        return RunRecord(
            **{key: getattr(self, key) for key in shared},
            status="finished",
            metrics=MetricsByMeasure.of(self.R),
            stages=[
                StageRecord(
                    stage=number,
                    domain=stage.domain,
                    epochs=stage.epochs,
                    ended=StageInfo(pool=stage.pool),
                    trainable_parameters=stage.trainable_parameters,
                    stored_bytes=stage.stored_bytes,
                    seconds=stage.seconds,
                    peak_gpu_bytes=stage.peak_gpu_bytes,
                )
                for number, stage in enumerate(self.stages, 1)
            ],
        )
