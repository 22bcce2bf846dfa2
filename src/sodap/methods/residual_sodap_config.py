"""Every option of Residual SODAP."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sodap.drift import DriftSettings
from sodap.methods.base import MethodConfig


class ResidualSodapConfig(MethodConfig):
    """Sizes and constants are the paper's; where the paper leaves a choice, the field says so."""

    # The eight switches of the paper's ablation.
    query_enhancer: bool = Field(True, description="QE: enhance the query by context and memory")
    pudd: bool = Field(True, description="PUDD: freeze and expand the pool at each new domain")
    sodap: bool = Field(True, description="SODAP: entmax and residual; off = softmax, one set")
    distill: bool = Field(True, description="Distill: both distillation losses")
    pseudo: bool = Field(True, description="Pseudo: the distillation loss on sampled features")
    l_div: bool = Field(True, description="L_div: the diversity loss")
    l_norm: bool = Field(True, description="L_norm: the norm of active prompts, from stage 2")
    uw: bool = Field(True, description="UW: learned loss weights; off = all weights 1")

    # 3.1 Prompting.
    pool_size: int = Field(60, ge=1, description="N: prompts in stage 1")
    capacity: int = Field(256, ge=1, le=100_000, description="prompts the pool can ever hold")
    bottleneck: int = Field(512, ge=1, description="d_a: width of prompts and adapters")
    memory_slots: int = Field(9, ge=1, description="M: slots of the memory bank")
    memory_momentum: float = Field(0.99, ge=0, lt=1, description="of the memory's moving average")
    memory_write: Literal["stage1", "always", "learned"] = Field(
        "stage1",
        description="moving average in stage 1 only, always (paper), or trained by gradient",
    )
    context: Literal["cls", "patch_mean"] = Field(
        "patch_mean",
        description="g: CLS after embedding (paper; the same for all images) or mean patch",
    )
    alpha: float = Field(1.5, gt=1, le=4, description="of entmax: 1 = softmax, 2 = sparsemax")
    temperature: float = Field(
        1.5, gt=0, description="of the selection: alpha = the printed entmax, 1 = the usual one"
    )
    residual: float = Field(0.1, ge=0, description="λ_r: weight of the active prompts")
    selection: Literal["entmax", "softmax"] = Field("entmax", description="routing weights")
    combination: Literal["residual", "joint"] = Field(
        "residual", description="route F and A apart and add, or as one set"
    )
    merge: Literal["paper", "rescale"] = Field(
        "rescale",
        description="active prompts freeze so that the function is preserved, or as they are",
    )
    per_layer: Literal["none", "adapters", "all"] = Field(
        "none", description="what every layer has for itself: nothing, adapters, or a pool too"
    )
    shared_after_stage1: Literal["frozen", "trainable", "low_lr"] = Field(
        "frozen",
        description="enhancer, projections and memory reader in later stages (paper: trainable)",
    )
    shared_lr: float = Field(0.1, gt=0, le=1, description="factor on lr for low_lr")

    backprop: Literal["full", "cls_row"] = Field(
        "full",
        description="gradients through all tokens, or along the CLS row only: less time and memory",
    )

    # 3.2 Preserving.
    feature_norm: bool = Field(
        True, description="features after the last LayerNorm (paper: before)"
    )
    stats: Literal["merged", "per_stage"] = Field(
        "merged", description="one Gaussian a class over all stages (paper), or one a stage"
    )
    distill_temperature: float = Field(2.0, gt=0, description="T of both distillation losses")
    pseudo_samples: int = Field(0, ge=0, description="K: sampled features a step; 0 = batch size")

    # 3.3 Drift.
    drift: DriftSettings = Field(DriftSettings(), description="constants of the drift score")
    drift_prefill: bool = Field(
        True, description="compare with the old domain's usage, not only with earlier batches"
    )
    drift_batch: int = Field(16, ge=0, description="images a usage vector; 0 = batch size (paper)")
    drift_skip_first: bool = Field(
        True, description="leave layer 0 out where its routing is the same for all images"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.pool_size > self.capacity:
            raise ValueError(f"a pool of capacity {self.capacity} cannot hold {self.pool_size}")
        return self
