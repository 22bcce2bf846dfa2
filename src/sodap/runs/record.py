"""Schema of `record.json` and `log.jsonl`: what a run was, and what came out of it.

The models are used by all code that writes or reads these files; `sodap.runs.reading` reads them.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from sodap.evaluation import DomainAnswers, Verdict, judge, summary
from sodap.runs.answers import StoredAnswers, decoded_run
from sodap.runs.config import RunConfig

FORMAT = 2
"""Format number of `record.json`. Files of format 1 have no number."""

Matrix = list[list[float]]
"""Results `[stage][domain]`."""

Status = Literal["running", "interrupted", "failed", "finished", "no record"]
"""State of a run; `no record` stands for a run that was killed before it wrote its first record."""


class Schema(BaseModel):
    """Base class of the models; unknown keys of a file are ignored."""

    model_config = ConfigDict(frozen=True)


# ------------------------------------------------------------------ where a run comes from


class Environment(Schema):
    """Versions, commit and machine of the process that runs."""

    sodap: str
    commit: str | None
    """Commit of the checkout, with `+changes` if files differ from it; None for a wheel."""
    commit_given: bool = False
    """Whether the commit was named by a person, for a run on a machine without git."""
    code: str | None = None
    """Fingerprint of all files of the package and of the method's own file."""
    python: str
    packages: dict[str, str | None]
    system: str
    processor: str
    threads: int
    gpu: str | None

    def same_program(self, other: Environment) -> bool:
        """Whether both run the same code on the same packages."""
        return (self.code, self.packages) == (other.code, other.packages)


class SplitCounts(Schema):
    """Images of each class in each split; a domain that is only tested has no others."""

    train: list[int]
    val: list[int]
    test: list[int]


class DomainInfo(Schema):
    name: str
    counts: SplitCounts


class StreamInfo(Schema):
    """The stream that a run learned."""

    name: str
    classes: list[str]
    notes: list[str] = []
    domains: list[DomainInfo]
    """All domains that are tested, in the order of the columns of R."""
    origins: list[str] = []
    """Where the names of groups come from, for each domain; empty if it is not known."""
    ranges: dict[Literal["deep", "dicom"], tuple[float, float]] = {}
    """Black and white of deep grey images (see `sodap.streams.grey`)."""

    @property
    def learned(self) -> list[DomainInfo]:
        """Domains with training images; the others are only tested."""
        return [domain for domain in self.domains if sum(domain.counts.train)]


class BackboneInfo(Schema):
    name: str
    weights: str | None = None
    image_size: int
    sha256: str


# ------------------------------------------------------------------ searches


class Candidate(Schema):
    """One setting that a search compared."""

    setting: dict[str, Any]
    score: float | None
    """Score of the setting; None if training broke."""


class SearchInfo(Schema):
    """The search that chose the settings of a run."""

    what: str
    """The score that was compared, in words."""
    budget: int
    beyond: int = 0
    """How many candidates may be added when the best learning rate is the lowest or highest."""
    seed: int
    candidates: list[Candidate]
    chosen: dict[str, Any]


# ------------------------------------------------------------------ stages


class NullBand(Schema):
    """Drift score of batches without drift: its mean, and the range of most batches."""

    mean: float
    low: float
    high: float


class DriftInfo(Schema):
    """Drift measured at the start of a stage, and the prompts added because of it."""

    score: float
    scores: list[list[float]]
    """`[batches, layers]`"""
    entropy_per_layer: list[float] = []
    overlap_per_layer: list[float] = []
    null_band: NullBand | None
    """Scores without drift; None if the domain before has too few batches."""
    past_batches: int | None = None
    """Batches of the domain before that the score is measured against."""
    needed_batches: int | None = None
    """Fewest past batches for which the entropy counts."""
    added: int
    """Prompts added to the pool."""

    @property
    def too_few(self) -> str | None:
        """Why the score says little, in words; None if there were enough past batches.

        With few past batches the entropy does not count, and large pools share most of their usage.
        So a score near 0 does not mean that the domain is like the one before.
        """
        past, needed = self.past_batches, self.needed_batches
        if past is None or needed is None or past >= needed:
            return None
        return f"{past} of {needed} batches to compare with"


class PoolInfo(Schema):
    """How many prompts of a pool are frozen, trained and free."""

    frozen: int
    active: int
    unused: int | None = None
    """Free places; None for a pool without a fixed capacity."""


class StageInfo(Schema):
    """What a method reports at the start or end of a stage; keys of other methods are kept."""

    model_config = ConfigDict(extra="allow")

    drift: DriftInfo | None = None
    pool: PoolInfo | None = None

    @model_serializer(mode="wrap")
    def _known(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what the method does not have."""
        return {key: value for key, value in serialize(self).items() if value is not None}


class StoredAsset(Schema):
    """Something that a method stores about past data."""

    name: str
    kind: str
    bytes: int
    images: int
    """How many images can be recovered from it."""


class EvaluationTime(Schema):
    images: int
    seconds: float


class StageRecord(Schema):
    """A finished stage."""

    stage: int
    """Number of the stage, from 1."""
    domain: str
    epochs: int
    """Number of epochs; 0 for a method in closed form."""
    steps: int = 0
    best_epoch: int = 0
    best_val_macro_f1: float | None = None
    begun: StageInfo = StageInfo()
    ended: StageInfo = StageInfo()
    trainable_parameters: int
    stored: list[StoredAsset] | None = None
    """What the method stores; None in a kept result, which has only the sum."""
    stored_bytes: int
    seconds: float
    evaluation: EvaluationTime | None = None
    peak_gpu_bytes: int | None = None


class StageUnderWay(Schema):
    stage: int
    begun: StageInfo


# ------------------------------------------------------------------ the record


class ResultMatrices(Schema):
    """R by each measure."""

    accuracy: Matrix
    macro_f1: Matrix
    kappa: Matrix = []


class Metrics(Schema):
    """Metrics that follow from R; None where one stage does not define them."""

    average_accuracy: float
    average_forgetting: float | None
    final_average: float
    backward_transfer: float | None


class MetricsByMeasure(Schema):
    """Metrics of each measure; None before the first stage is finished."""

    accuracy: Metrics | None
    macro_f1: Metrics | None
    kappa: Metrics | None = None

    @classmethod
    def of(cls, R: ResultMatrices) -> MetricsByMeasure:
        matrices = {name: getattr(R, name) for name in cls.model_fields}
        return cls.model_validate({name: summary(M) if M else None for name, M in matrices.items()})


class Throughput(Schema):
    """Images a second; None where nothing was measured."""

    train: float | None = None
    inference: float | None = None


class ProcessInfo(Schema):
    """A process, so that others on the same machine can tell whether it still runs."""

    machine: str
    """Digest of what tells this boot of this machine, or this container, from all others."""
    pid: int
    started: int
    """Start in clock ticks since boot, since a number may be given to another process later."""


class RunContext(Schema):
    """How a grid started a run."""

    jobs: int = 1
    """Runs at a time on the same machine."""
    search: SearchInfo | None = None
    variant: str | None = None
    """The method with changed options, such as `l2p@faithful`; None for the plain method."""


class RunRecord(RunContext):
    """Content of `record.json`."""

    format: int = FORMAT
    command: list[str]
    config: RunConfig
    """Configuration with every option of the method written out."""
    environment: Environment | None
    """Versions and machine; None if there is no record, only a configuration."""
    earlier_environments: list[Environment] = []
    """Other programs that the run began with before it was resumed."""
    stream: StreamInfo
    backbone: BackboneInfo | None
    """Name and digest of the backbone; None if there is no record, only a configuration."""
    status: Status
    note: str | None = None
    """Why the run is not finished."""
    process: ProcessInfo | None = None
    """The process that runs; None if it has ended, or if the system cannot tell."""
    under_way: StageUnderWay | None = None
    R: ResultMatrices
    metrics: MetricsByMeasure
    throughput: Throughput = Throughput()
    confusions: list[list[list[list[int]]]] = []
    """`[stage][domain][label][prediction]`; empty in a kept result without answers."""
    answers: list[StoredAnswers] = []
    """Answers to single test images, by domain; empty in records of earlier versions."""
    stages: list[StageRecord]

    @property
    def row(self) -> str:
        """Row of a table that the run belongs to: its method, or its variant of it."""
        return self.variant or self.config.method

    @property
    def single_answers(self) -> list[DomainAnswers]:
        """Answers to single test images, by domain; empty if they are not known."""
        return decoded_run(self.answers)

    @property
    def verdict(self) -> Verdict | None:
        """Final average, constant answer and recall in words; None before a stage is finished."""
        if not self.R.accuracy:
            return None
        last = self.confusions[-1] if self.confusions else []
        return judge(
            self.R.accuracy,
            [np.array(matrix) for matrix in last],
            [domain.counts.test for domain in self.stream.domains],
            self.stream.classes,
            [domain.name for domain in self.stream.domains],
        )


class EpochRow(Schema):
    """A line of `log.jsonl`."""

    stage: int
    domain: str
    epoch: int
    """Number of the epoch, from 1 in each stage."""
    lr: float
    steps: int
    losses: dict[str, float]
    """Mean of each loss over the epoch."""
    weights: dict[str, float]
    """Learned weight of each loss at the end of the epoch; empty if weights are not learned."""
    val_macro_f1: float
    val_accuracy: float
    val_nll: float | None = None
    """Mean negative log-likelihood; None in a log of an earlier version."""
    images_per_second: float
    seconds: float
