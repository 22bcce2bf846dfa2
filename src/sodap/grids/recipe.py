"""Grid files: the streams, methods, folds, seeds and settings of a grid in YAML."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sodap.errors import invalid
from sodap.methods import method_names
from sodap.runs.named_yaml import GRIDS, read_named_yaml, yaml_names
from sodap.streams.folds import MAX_FOLDS


class GridRecipe(BaseModel):
    """A grid's file: what is run unless the user says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    streams: list[str] = Field(["digits"], description="streams, as for a run")
    methods: list[str] | Literal["all"] = Field(
        "all", description="methods, or variants such as l2p@faithful"
    )
    seeds: int = Field(5, ge=1, description="number of seeds, from 0")
    folds: int | None = Field(
        None, ge=2, le=MAX_FOLDS, description="number of folds; default: the usual splits"
    )
    settings: dict[str, Any] = Field({}, description="keys of a run, the same for every run")

    def method_names(self) -> list[str]:
        return method_names() if self.methods == "all" else self.methods


def grid_names() -> list[str]:
    return yaml_names(GRIDS)


def read_grid(name: str) -> GridRecipe:
    _, content = read_named_yaml(GRIDS, "grid", name)
    try:
        return GridRecipe.model_validate(content)
    except ValidationError as error:
        raise invalid(f"grid '{name}'", error) from error
