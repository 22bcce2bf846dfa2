"""`load`: the learner that was saved in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from sodap.errors import SodapError
from sodap.learning.learner import Learner
from sodap.learning.training import Training
from sodap.storage import load_state
from sodap.streams.grey import GreyRanges


def load(
    folder: str | Path,
    *,
    weights: str | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> Learner:
    """Load the learner that `save` wrote to a folder, or the model of a run.

    Args:
        folder: Folder of a saved model or of a run.
        weights: File of the backbone's weights, if it is not where it was when saved.
        device: `cpu`, `cuda`, or `auto`: a GPU if there is one.
        precision: Of the frozen backbone: `fp32`, `bf16`, or `auto`: bf16 on a GPU.
    """
    home = Path(folder)
    if not (home / "model.json").is_file() and (home / "model" / "model.json").is_file():
        home = home / "model"  # a run's folder holds the model in a folder of its own
    if not (home / "model.json").is_file() and (home / "config.json").is_file():
        raise SodapError(f"the run in {home} has no model: it is not finished, or it was deleted")
    tensors, metadata = load_state(home, "model")
    try:
        known = _Metadata.model_validate(metadata)
    except ValidationError as error:
        raise SodapError(f"{folder} was saved by a version of sodap that does not fit") from error
    backbone = known.backbone
    learner = Learner(
        known.classes,
        method=known.method,
        options=known.options,
        backbone=backbone.name,
        weights=weights or backbone.weights,
        image_size=backbone.image_size,
        training=known.training,
        seed=known.seed,
        device=device,
        precision=precision,
    )
    if learner.method.backbone.digest() != backbone.sha256:
        raise SodapError(
            f"{folder} was learned on other weights of {backbone.name} than "
            f"'{weights or backbone.weights}'; give the same file with weights=FILE"
        )
    learner.restore(tensors, known.stages_learned, known.stages_learned, known.domains_learned)
    learner.ranges = GreyRanges.from_json(known.ranges)
    return learner


class _Backbone(BaseModel):
    name: str
    weights: str
    image_size: int = Field(ge=8, le=2048)
    sha256: str


class _Metadata(BaseModel):
    """The part of `Learner.metadata` that is needed to build a learner again."""

    classes: list[str]
    method: str
    options: dict[str, Any]
    backbone: _Backbone
    training: Training
    seed: int
    ranges: dict[Literal["deep", "dicom"], tuple[float, float]] = {}
    stages_learned: int = Field(ge=0, le=1_000_000)
    domains_learned: list[str] = []
    """Models of earlier versions do not name their domains."""
