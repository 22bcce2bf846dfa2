"""Every constant of PUDD, with the paper's value where the paper gives one."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class DriftSettings(BaseModel):
    """What the drift score and the growth of the pool depend on besides the usage itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    window: int = Field(
        100, ge=2, description="W: a batch is compared with the W - 1 batches before it"
    )
    entropy_weight: float = Field(1.0, ge=0, description="α: weight of the entropy's deviation")
    overlap_weight: float = Field(0.5, ge=0, description="β: weight of the change of usage set")
    overlap_floor: float = Field(
        0.1, gt=0, le=1, description="η: the overlap (IoU) counts as no less than this"
    )
    usage_threshold: float = Field(
        0.01, ge=0, description="τ_s: a prompt is in the usage set if its mean weight exceeds this"
    )
    relative_threshold: bool = Field(
        False, description="count the usage threshold in units of 1 / number of prompts"
    )
    min_entries: int = Field(
        10, ge=1, description="with fewer past batches the entropy does not count"
    )
    std_floor: float = Field(
        1e-5,
        ge=0,
        le=1,
        description="the entropy's std counts as no less than this share of log N; 0 = the paper",
    )
    max_score: float = Field(
        5.0, gt=0, description="D_max: the score at which as many prompts are added as are active"
    )
    min_growth: int = Field(10, ge=0, description="E_min: the fewest prompts an expansion adds")
    max_growth: int = Field(80, ge=0, description="E_max: the most prompts an expansion adds")
    threshold: float = Field(
        0.0,
        ge=0,
        description="θ: a domain with a lower score adds no prompt; 0 = all add, 0.7 = the paper",
    )

    @property
    def needed(self) -> int:
        """Past batches from which on the entropy counts.

        A short window is full before it has `min_entries`; with one entry there is no spread.
        """
        return min(self.min_entries, max(self.window - 1, 2))

    @model_validator(mode="after")
    def _growth_has_a_range(self) -> Self:
        if self.min_growth > self.max_growth:
            raise ValueError(
                f"min_growth ({self.min_growth}) must not exceed max_growth ({self.max_growth})"
            )
        return self
