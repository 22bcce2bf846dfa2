"""An ablation: a grid of the full method and of variants with one part changed.

OUT/STREAM/METHOD/sSEED/             a run of the full method (see `sodap.runs.runner`)
OUT/STREAM/METHOD@KEY=VALUE/sSEED/   a run of a variant
OUT/ablation.md|csv|json             the table (see `sodap.reporting.tables.ablation`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sodap.errors import SodapError
from sodap.grids.grid import Grid
from sodap.grids.variants import Entry
from sodap.methods import Method, find_method
from sodap.methods.variants import FULL, Variant
from sodap.runs.config import RunConfig, load_config


@dataclass(frozen=True)
class Ablation:
    recipe: str
    out: Path
    changes: Sequence[str] = ()
    """`key=value`, the same for every run; they define the full method."""
    seeds: Sequence[int] = (0, 1, 2)
    only: Sequence[str] = ()
    """Names of variants; empty for all."""
    extra: bool = False
    """Whether to run variants with a part done another way as well."""
    jobs: int = 1
    command: Sequence[str] = ()

    @cached_property
    def method(self) -> type[Method]:
        """The method whose parts are removed."""
        return find_method(self.config(FULL).method)

    @cached_property
    def variants(self) -> list[Variant]:
        """The full method, then the chosen variants that differ from it."""
        more = self.method.other_ways if self.extra or self.only else ()
        offered = [*self.method.removals, *more]
        unknown = set(self.only) - {variant.name for variant in offered}
        if unknown:
            names = ", ".join(variant.name for variant in offered)
            raise SodapError(f"no variant is called '{min(unknown)}'; there are: {names}")
        chosen = [v for v in offered if not self.only or v.name in self.only]
        full = self.config(FULL)
        return [FULL, *(v for v in chosen if self.config(v) != full)]

    @property
    def left_out(self) -> list[Variant]:
        """Chosen removals of a part that is already off in the full method."""
        return [
            variant
            for variant in self.method.removals
            if variant not in self.variants and (not self.only or variant.name in self.only)
        ]

    def config(self, variant: Variant) -> RunConfig:
        """Configuration with all options written out, so that equal settings are equal."""
        return load_config(self.recipe, [*self.changes, *variant.changes]).resolved()

    @cached_property
    def grid(self) -> Grid:
        """The grid of all variants; an error if there is nothing to compare."""
        if any(change.partition("=")[0] == "seed" for change in self.changes):
            raise SodapError("'seed' is what an ablation varies; give --seeds instead")
        full = self.config(FULL)
        if not self.method.removals:
            raise SodapError(f"{full.method} names no parts that could be removed")
        if len(self.variants) < 2:
            raise SodapError("there is nothing to remove: the full method has none of these parts")
        return Grid(
            [full.stream],
            [self.row(variant).name for variant in self.variants],
            self.seeds,
            self.out,
            [c for c in self.changes if c.partition("=")[0] not in ("stream", "method")],
            jobs=self.jobs,
            search=False,
            command=self.command,
            recipe=self.recipe,
        )

    def folder(self, variant: Variant, seed: int) -> Path:
        """Folder of a run."""
        return self.grid.home(self.grid.streams[0], self.row(variant)) / f"s{seed}"

    def row(self, variant: Variant) -> Entry:
        """The variant as a row of a grid."""
        return Entry(self.method.name, tuple(sorted(variant.changes)))
