"""What each part of Residual SODAP is worth: the method as it is, and again without one part.

OUT/VARIANT/sSEED/         a run (see `sodap.runs.run`)
OUT/ablation.md|csv|json   the table, written when all runs have had their turn

The removals are the eight of the paper's ablation. What it leaves open has more than one reading;
those other readings are variants too, on demand. Finished runs are left alone, so the same command
goes on where it stopped.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sodap.backbones import native_size
from sodap.errors import SodapError
from sodap.grids.grid import GridCallback, GridSummary
from sodap.grids.task import Task, decode, error_line, performed
from sodap.grids.workers import TaskResult
from sodap.runs.config import RunConfig, load_config
from sodap.runs.run import check_folder, check_weights
from sodap.streams import stream_names

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
    """Which of the paper's eight parts are at work; some go together with another."""
    options = config.described()["options"]
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
class AblationTask(Task):
    """A run of one variant."""

    variant: Variant = FULL

    @property
    def label(self) -> str:
        return f"{self.variant.title}, seed {self.config.seed}"


@dataclass(frozen=True)
class Ablation:
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

    def variants(self) -> list[Variant]:
        """The full method first, then what differs from it."""
        offered = [*REMOVALS, *(EXTRA if self.extra or self.only else ())]
        unknown = set(self.only) - {variant.name for variant in offered}
        if unknown:
            names = ", ".join(variant.name for variant in offered)
            raise SodapError(f"no variant is called '{min(unknown)}'; there are: {names}")
        wanted = [v for v in offered if not self.only or v.name in self.only]
        seed = self.seeds[0]
        full = self.config(FULL, seed)
        return [FULL, *(v for v in wanted if self.config(v, seed) != full)]

    def left_out(self) -> list[Variant]:
        """Removals that were asked for, but of a part that the full method does not have."""
        chosen = {variant.name for variant in self.variants()}
        return [
            variant
            for variant in REMOVALS
            if variant.name not in chosen and (not self.only or variant.name in self.only)
        ]

    def config(self, variant: Variant, seed: int) -> RunConfig:
        """With all options written out, so that equal settings are equal."""
        changes = [*self.changes, *variant.changes, f"seed={seed}"]
        config = load_config(self.recipe, changes)
        return config.model_copy(update={"options": config.described()["options"]})

    def folder(self, variant: Variant, seed: int) -> Path:
        return self.out / variant.name / f"s{seed}"

    def check(self) -> None:
        """Everything that can be wrong before the first run."""
        if any(change.partition("=")[0] == "seed" for change in self.changes):
            raise SodapError("'seed' is what an ablation varies; give --seeds instead")
        plain = load_config(self.recipe, self.changes)
        if plain.method != METHOD:
            raise SodapError(f"the parts to remove are those of {METHOD}, not of {plain.method}")
        native_size(plain.backbone)
        check_weights(plain)
        if len(self.variants()) < 2:
            raise SodapError("there is nothing to remove: the full method has none of these parts")

    def run(self, callback: GridCallback | None = None) -> GridSummary:
        """Run what is not finished; what fails costs its run alone."""
        self.check()
        callback = callback or GridCallback()
        outcome, tasks = GridSummary(), self._tasks()
        outcome.finished = len(self.variants()) * len(self.seeds) - len(tasks)
        callback.planned(len(tasks), outcome.finished)
        if tasks:
            self._decode(callback)
        heard: set[str] = set()
        with closing(performed(tasks, self.jobs)) as reports:
            for report in reports:
                for words in (report.result or {}).get("warnings", ()):
                    if words not in heard:
                        heard.add(words)
                        callback.warned(words)
                _take(report, outcome, callback)
        return outcome

    def _tasks(self) -> deque[AblationTask]:
        """Seed by seed, so that an early look at the table compares like with like."""
        threads = max(1, len(os.sched_getaffinity(0)) // self.jobs)
        tasks: deque[AblationTask] = deque()
        for seed in self.seeds:
            for variant in self.variants():
                config, folder = self.config(variant, seed), self.folder(variant, seed)
                if check_folder(config, folder, resume=True) is None:
                    context = {"jobs": self.jobs, "ablation": variant.name}
                    tasks.append(
                        AblationTask(
                            config,
                            folder,
                            command=self.command,
                            context=context,
                            threads=threads,
                            variant=variant,
                        )
                    )
        return tasks

    def _decode(self, callback: GridCallback) -> None:
        """Once, here, where the user can see it; the workers then find it done."""
        config = self.config(FULL, self.seeds[0])
        if config.stream not in stream_names():  # those are made in memory, by each worker
            decode(config, callback.images_decoded)


def _take(report: TaskResult[AblationTask], outcome: GridSummary, callback: GridCallback) -> None:
    task, error = report.task, error_line(report)
    if error is not None:
        outcome.failures[task.label] = error
        callback.task_failed(task, error)
    else:
        outcome.done += 1
        callback.task_done(task, report.result)
