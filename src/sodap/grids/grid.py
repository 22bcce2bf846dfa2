"""A grid: streams x methods x seeds, each run in a folder of its own.

OUT/STREAM/METHOD/search.json          the setting that was chosen, and the candidates
OUT/STREAM/METHOD/sSEED/               a run (see `sodap.runs.run`)
OUT/STREAM/METHOD@OPTION/sSEED/        a run of a variant, with the setting chosen for the method
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sodap.backbones import native_size
from sodap.errors import SodapError
from sodap.grids.search import SEED, Setting, as_changes, settings_to_compare
from sodap.grids.task import folder_name
from sodap.grids.variants import Entry, read_entry
from sodap.methods import find_method, method_names
from sodap.runs.config import RunConfig, load_config
from sodap.runs.named_yaml import GRIDS, read_named_yaml, yaml_names
from sodap.runs.run import check_weights

OWN_KEYS = {"stream": "--streams", "method": "--methods", "seed": "--seeds"}
"""Keys that a grid varies, so that they cannot be the same for all runs."""


class GridRecipe(BaseModel):
    """A grid's file: what is run unless the user says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    streams: list[str] = Field(["digits"], description="streams, as for a run")
    methods: list[str] | Literal["all"] = Field(
        "all", description="methods, or variants such as l2p@faithful"
    )
    seeds: int = Field(5, ge=1, description="number of seeds, from 0")
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
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise SodapError(f"grid '{name}', '{key}': {first['msg'].lower()}") from error


@dataclass(frozen=True)
class Grid:
    streams: Sequence[str]
    methods: Sequence[str]
    """Methods, and variants of them (see `sodap.grids.variants`)."""
    seeds: Sequence[int]
    out: Path
    changes: Sequence[str] = ()
    """`key=value`, the same for every run; a key that is given here is not searched."""
    jobs: int = 1
    """Worker processes; with 0 the tasks are done in this process."""
    search: bool = True
    command: Sequence[str] = ()
    recipe: str = "default"

    @property
    def entries(self) -> list[Entry]:
        return [read_entry(text) for text in self.methods]

    def check(self) -> None:
        """Raise an error for everything that can be wrong before the first run."""
        entries = self.entries
        for what, names in (("stream", self.streams), ("method", [e.name for e in entries])):
            if not names or len(set(names)) != len(names):
                raise SodapError(f"a grid needs one or more {what}s, each once")
        if len({folder_name(stream) for stream in self.streams}) != len(self.streams):
            raise SodapError("two of the streams have the same name; rename one")
        if not self.seeds or SEED in self.seeds:
            raise SodapError(f"a grid needs one or more seeds, and not {SEED}: searches use it")
        changes = [*self.changes, *(change for entry in entries for change in entry.changes)]
        for key in (change.partition("=")[0] for change in changes):
            if key in OWN_KEYS:
                raise SodapError(f"'{key}' is what a grid varies; give {OWN_KEYS[key]} instead")
        for entry in entries:
            find_method(entry.method)
        for stream in self.streams:
            for entry in entries:
                config = self.config(stream, entry, self.seeds[0])
                native_size(config.backbone)
                check_weights(config)

    def config(
        self, stream: str, entry: Entry, seed: int, setting: Setting | None = None
    ) -> RunConfig:
        chosen = as_changes(setting or {})
        own = [f"stream={stream}", f"method={entry.method}", f"seed={seed}"]
        return load_config(self.recipe, [*chosen, *self.changes, *entry.changes, *own])

    def home(self, stream: str, entry: Entry) -> Path:
        return self.out / folder_name(stream) / entry.name

    def compared(self, method: str) -> list[Setting]:
        return settings_to_compare(method, self.changes) if self.search else []
