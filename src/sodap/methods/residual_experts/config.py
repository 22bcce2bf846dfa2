"""Options of residual experts."""

from __future__ import annotations

from pydantic import Field

from sodap.methods.base import MethodConfig


class ResidualExpertsConfig(MethodConfig):
    """Sizes of the network's parts, and what of them answers."""

    rank: int = Field(8, ge=1, le=256, description="rank of the residuals of a linear layer")
    trunk: float = Field(
        0.25, ge=0, lt=1, description="share of the blocks that stay frozen and are computed once"
    )
    read_blocks: int = Field(
        4, ge=1, description="last blocks whose CLS and mean patch token the heads read"
    )
    adapt: bool = Field(
        True, description="stage 1 adapts the features of the base; off = it reads the plain ones"
    )
    budget: int = Field(
        16, ge=2, le=1000, description="largest number of experts; beyond it the nearest two merge"
    )
    shown_to: int = Field(
        1, ge=1, description="experts that see an image: the most probable ones by the gate"
    )
    experts: bool = Field(True, description="experts answer besides the base; off = the base alone")
    fast: bool = Field(
        False, description="the most probable expert answers alone: one pass per image, not two"
    )
    balance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the domain's class frequencies that is taken out of the answer: "
        "0 = accuracy as trained, 1 = all classes count alike",
    )
    calibrate: bool = Field(
        True, description="fit the temperature of an expert on the validation images of its domain"
    )
    head_lr: float = Field(
        0.1, gt=0, le=10, description="factor on lr for the head, which starts at a solution"
    )
