"""Training settings that all methods share."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sodap.errors import SodapError, invalid
from sodap.streams import Augmentation


class Training(BaseModel):
    """AdamW with a cosine schedule that restarts at every stage. The defaults are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(100, ge=1, le=10_000, description="maximum number of epochs per stage")
    patience: int = Field(
        5, ge=1, description="stop a stage after this many epochs without a better validation score"
    )
    batch_size: int = Field(64, ge=1, le=65_536, description="images per training step")
    lr: float = Field(1e-3, gt=0, le=10, description="learning rate at the start of a stage")
    weight_decay: float = Field(0.01, ge=0, description="weight decay of AdamW, on matrices only")
    cuda_graphs: bool = Field(
        True, description="on a GPU, capture steps and predictions as CUDA graphs and replay them"
    )
    compile: bool = Field(
        False, description="use torch.compile: about a minute to start, then faster"
    )
    augmentation: Augmentation | None = Field(
        None, description="random augmentation of training images; default: the stream's"
    )

    @model_validator(mode="before")
    @classmethod
    def _read_former_name(cls, values: Any) -> Any:
        """Accept files that were saved when `cuda_graphs` was called `record_steps`."""
        if isinstance(values, dict) and "record_steps" in values:
            values = {"cuda_graphs": values["record_steps"], **values}
            del values["record_steps"]
        return values

    def changed(self, settings: Mapping[str, Any]) -> Training:
        """A copy with other settings, such as `epochs`, after checking them."""
        for name in settings:
            if name not in Training.model_fields:
                close = difflib.get_close_matches(name, Training.model_fields, 1)
                hint = f"did you mean '{close[0]}'?" if close else "see help(sodap.Training)"
                raise SodapError(f"'{name}' is no training setting; {hint}")
        try:
            return Training.model_validate({**dict(self), **settings})
        except ValidationError as error:
            raise invalid("training settings", error) from error
