"""Constants of PUDD; the defaults are the paper's where it gives one."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class DriftSettings(BaseModel):
    """Constants of the drift score and of the growth of the pool."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    window: int = Field(
        100, ge=2, description="W: a batch is compared with the W - 1 batches before it"
    )
    entropy_weight: float = Field(1.0, ge=0, description="α: weight of the entropy's deviation")
    overlap_weight: float = Field(0.5, ge=0, description="β: weight of the change of usage set")
    overlap_floor: float = Field(0.1, gt=0, le=1, description="η: lower bound of the overlap (IoU)")
    usage_threshold: float = Field(
        0.01, ge=0, description="τ_s: a prompt is in the usage set if its mean weight exceeds this"
    )
    relative_threshold: bool = Field(
        False, description="usage threshold in units of 1 / number of prompts"
    )
    min_entries: int = Field(10, ge=1, description="past batches from which on the entropy counts")
    std_floor: float = Field(
        1e-5,
        ge=0,
        le=1,
        description="lower bound of the entropy's std, as a share of log N; 0 = the paper",
    )
    max_score: float = Field(
        5.0, gt=0, description="D_max: score at which as many prompts are added as are active"
    )
    min_growth: int = Field(10, ge=0, description="E_min: fewest prompts an expansion adds")
    max_growth: int = Field(80, ge=0, description="E_max: most prompts an expansion adds")
    threshold: float = Field(
        0.0,
        ge=0,
        description="θ: below this score the pool does not grow; 0 = it always grows, 0.7 = paper",
    )

    @property
    def needed(self) -> int:
        """Past batches that the entropy needs: `min_entries`, or fewer where the window is short.

        At least 2, because one entry has no standard deviation.
        """
        return min(self.min_entries, max(self.window - 1, 2))

    @model_validator(mode="after")
    def _growth_has_a_range(self) -> Self:
        if self.min_growth > self.max_growth:
            raise ValueError(
                f"min_growth ({self.min_growth}) must not exceed max_growth ({self.max_growth})"
            )
        return self
