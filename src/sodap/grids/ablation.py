"""Ablation of Residual SODAP: a grid of the full method and of variants with one part changed.

OUT/STREAM/residual-sodap/sSEED/           a run of the full method (see `sodap.runs.runner`)
OUT/STREAM/residual-sodap@uw=false/sSEED/  a run of a variant
OUT/ablation.md|csv|json                   the table, written when all runs are done

The removals are the eight of the paper's ablation. What the paper leaves open can be read in more
than one way; these other readings are variants too, on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sodap.errors import SodapError
from sodap.grids.grid import Grid
from sodap.grids.variants import Entry
from sodap.runs.config import RunConfig, load_config

METHOD = "residual-sodap"

PROMPTING = "prompting and drift"
PRESERVING = "preserving the classifier"
OBJECTIVE = "objective and balance"
READINGS = "other readings"


@dataclass(frozen=True)
class Variant:
    """The method with one thing changed."""

    name: str
    """Of its folder, and for `--only`."""
    title: str
    group: str
    changes: tuple[str, ...]
    """`key=value`, on top of the settings of the full method."""

    @property
    def entry(self) -> Entry:
        """The variant as a row of a grid."""
        return Entry(METHOD, tuple(sorted(self.changes)))


FULL = Variant("full", "full method", "", ())

REMOVALS = (
    Variant("qe", "without query enhancer (QE)", PROMPTING, ("query_enhancer=false",)),
    Variant("pudd", "without PUDD", PROMPTING, ("pudd=false",)),
    Variant("sodap", "without residual SODAP", PROMPTING, ("sodap=false",)),
    Variant("pseudo", "without pseudo replay", PRESERVING, ("pseudo=false",)),
    Variant("distill", "without distillation", PRESERVING, ("distill=false",)),
    Variant("div", "without L_div", OBJECTIVE, ("l_div=false",)),
    Variant("norm", "without L_norm", OBJECTIVE, ("l_norm=false",)),
    Variant("uw", "without uncertainty weighting (UW)", OBJECTIVE, ("uw=false",)),
)
"""In the order and the groups of the paper's table."""


def _reading(title: str, *changes: str) -> Variant:
    name = "-".join(changes[0].replace("drift.", "").split("="))
    return Variant(name.replace("_", "-"), title, READINGS, changes)


EXTRA = (
    _reading("softmax, residual kept", "selection=softmax"),
    _reading("entmax over one set, no residual", "combination=joint"),
    _reading("context: CLS", "context=cls"),
    _reading("context: mean patch", "context=patch_mean"),
    _reading("temperature 1.5", "temperature=1.5"),
    _reading("temperature 1", "temperature=1.0"),
    _reading("temperature 0.5", "temperature=0.5"),
    _reading("temperature 0.25", "temperature=0.25"),
    _reading("shared parts frozen after stage 1", "shared_after_stage1=frozen"),
    _reading("shared parts train on", "shared_after_stage1=trainable"),
    _reading("shared parts train on slowly", "shared_after_stage1=low_lr"),
    _reading("prompts freeze as they are", "merge=paper"),
    _reading("prompts freeze to scale", "merge=rescale"),
    _reading("memory written in stage 1", "memory_write=stage1"),
    _reading("memory written always", "memory_write=always"),
    _reading("memory learned", "memory_write=learned"),
    _reading("shared by all layers", "per_layer=none"),
    _reading("adapters for each layer", "per_layer=adapters"),
    _reading("adapters and pool for each layer", "per_layer=all"),
    _reading("drift against the new domain only", "drift_prefill=false"),
    _reading("growth only from a score of 0.7", "drift.threshold=0.7"),
    _reading("growth at every new domain", "drift.threshold=0.0"),
    _reading(
        "usage threshold in units of 1/N",
        "drift.relative_threshold=true",
        "drift.usage_threshold=0.6",
    ),
    _reading("growth always 24", "drift.min_growth=24", "drift.max_growth=24"),
    _reading("features before the last norm", "feature_norm=false"),
    _reading("features after the last norm", "feature_norm=true"),
    _reading("one Gaussian a class", "stats=merged"),
    _reading("one Gaussian a class and stage", "stats=per_stage"),
)
"""Both sides of every choice; the side that the full method is on is no variant of it."""


def parts_of(config: RunConfig) -> dict[str, bool]:
    """Which of the paper's eight parts are on; some need another."""
    options = config.resolved().options
    return {
        "SODAP": options["sodap"],
        "PUDD": options["pudd"],
        "Distill": options["distill"],
        "Pseudo": options["distill"] and options["pseudo"],
        "L_div": options["l_div"],
        "L_norm": options["pudd"] and options["l_norm"],
        "UW": options["uw"],
        "QE": options["query_enhancer"],
    }


@dataclass(frozen=True)
class Ablation:
    """A grid of the full method and its variants."""

    recipe: str
    out: Path
    changes: Sequence[str] = ()
    """`key=value`, the same for every run: they make the full method."""
    seeds: Sequence[int] = (0, 1, 2)
    only: Sequence[str] = ()
    """Names of variants; empty for all."""
    extra: bool = False
    jobs: int = 1
    command: Sequence[str] = ()

    @cached_property
    def stream(self) -> str:
        return load_config(self.recipe, self.changes).stream

    def variants(self) -> list[Variant]:
        """The full method first, then what differs from it."""
        offered = [*REMOVALS, *(EXTRA if self.extra or self.only else ())]
        unknown = set(self.only) - {variant.name for variant in offered}
        if unknown:
            names = ", ".join(variant.name for variant in offered)
            raise SodapError(f"no variant is called '{min(unknown)}'; there are: {names}")
        wanted = [v for v in offered if not self.only or v.name in self.only]
        full = self.config(FULL)
        return [FULL, *(v for v in wanted if self.config(v) != full)]

    def left_out(self) -> list[Variant]:
        """Removals of a part that is already off in the full method."""
        chosen = {variant.name for variant in self.variants()}
        return [
            variant
            for variant in REMOVALS
            if variant.name not in chosen and (not self.only or variant.name in self.only)
        ]

    def config(self, variant: Variant) -> RunConfig:
        """Configuration with all options written out, so that equal settings are equal."""
        return load_config(self.recipe, [*self.changes, *variant.changes]).resolved()

    def grid(self) -> Grid:
        """The full method and its variants as a grid."""
        if any(change.partition("=")[0] == "seed" for change in self.changes):
            raise SodapError("'seed' is what an ablation varies; give --seeds instead")
        method = self.config(FULL).method
        if method != METHOD:
            raise SodapError(f"the parts to remove are those of {METHOD}, not of {method}")
        variants = self.variants()
        if len(variants) < 2:
            raise SodapError("there is nothing to remove: the full method has none of these parts")
        return Grid(
            [self.stream],
            [variant.entry.name for variant in variants],
            self.seeds,
            self.out,
            [c for c in self.changes if c.partition("=")[0] not in ("stream", "method")],
            jobs=self.jobs,
            search=False,
            command=self.command,
            recipe=self.recipe,
        )

    def folder(self, variant: Variant, seed: int) -> Path:
        return self.grid().home(self.stream, variant.entry) / f"s{seed}"
