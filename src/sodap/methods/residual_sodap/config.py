"""Options of Residual SODAP."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sodap.drift import DriftSettings
from sodap.methods.base import MethodConfig
from sodap.prompting import PromptingOptions


class ResidualSodapConfig(PromptingOptions, MethodConfig):
    """Sizes and constants are the paper's; where the paper leaves a choice, the field says so."""

    # With `query_enhancer` and `sodap`, the switches of the paper's ablation.
    pudd: bool = Field(True, description="PUDD: freeze and expand the pool at each new domain")
    distill: bool = Field(True, description="Distill: both distillation losses")
    pseudo: bool = Field(True, description="Pseudo: the distillation loss on sampled features")
    l_div: bool = Field(True, description="L_div: the diversity loss")
    l_norm: bool = Field(True, description="L_norm: the norm of active prompts, from stage 2")
    l_norm_base: bool = Field(
        False,
        description="L_norm also in a later stage in which no prompt is frozen yet (paper)",
    )
    uw: bool = Field(True, description="UW: learned loss weights; off = all weights 1")

    # 3.1 Prompting.
    shared_after_stage1: Literal["frozen", "trainable", "low_lr"] = Field(
        "frozen",
        description="enhancer, projections and memory reader in later stages (paper: trainable)",
    )
    router_lr: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor on lr for what decides the routing: keys, enhancer, W_down, memory "
        "reader",
    )
    shared_lr: float = Field(0.1, gt=0, le=1, description="factor on lr for low_lr")
    backprop: Literal["full", "cls_row"] = Field(
        "full",
        description="gradients through all tokens, or along the CLS row only: less time and memory",
    )
    fast: bool = Field(
        True, description="folded and fused computation of the prompts; off = equations as printed"
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
    drift_sets: Literal["own", "joined"] = Field(
        "own",
        description="S: prompts used by the weights of their own set, F or A, or by the joined "
        "weights that H is computed from (paper)",
    )
    drift_skip_first: bool = Field(
        True, description="leave layer 0 out where its routing is the same for all images"
    )

    @property
    def loss_names(self) -> list[str]:
        """Names of the losses from stage 2 on; stage 1 has only `ce` and `div`."""
        chosen = {
            "ce": True,
            "div": self.l_div,
            "norm": self.l_norm and self.pudd,
            "real": self.distill,
            "pseudo": self.distill and self.pseudo,
        }
        return [name for name, wanted in chosen.items() if wanted]

    def drift_layers(self, depth: int) -> range:
        """Layers whose usage is scored: without layer 0 if it routes all images the same."""
        constant_first = self.context == "cls" or not self.query_enhancer
        return range(int(self.drift_skip_first and constant_first), depth)
