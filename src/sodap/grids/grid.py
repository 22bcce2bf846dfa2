"""A grid: streams x methods x folds x seeds, each run in a folder of its own.

OUT/STREAM/METHOD/search.json          the setting that was chosen, and the candidates
OUT/STREAM/METHOD/sSEED/               a run (see `sodap.runs.runner`)
OUT/STREAM/METHOD@OPTION/sSEED/        a run of a variant, with the setting chosen for the method
OUT/STREAM/fold-2-of-5/METHOD/...      the same for each fold, if there are folds

Every fold has a search of its own, because the validation images of one fold are tested in others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sodap.errors import SodapError
from sodap.grids.search import SEED, Setting, as_changes, settings_to_compare
from sodap.grids.variants import Entry, read_entry
from sodap.methods import check_method_name
from sodap.runs.config import RunConfig, check_weights, load_config
from sodap.streams.folds import all_folds
from sodap.streams.loading import check_stream_name, refuse_folds

OWN_KEYS = {"stream": "--streams", "method": "--methods", "seed": "--seeds", "fold": "--folds"}
"""Keys that a grid varies, so that they cannot be the same for all runs."""


def folder_name(stream: str) -> str:
    """Name of a stream's folder: its own name, or that of its folder or file of images."""
    return Path(stream).resolve().stem


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
    folds: int | None = None
    """Number of folds of every stream; None for its usual splits."""
    command: Sequence[str] = ()
    recipe: str = "default"

    @property
    def entries(self) -> list[Entry]:
        return [read_entry(text) for text in self.methods]

    @property
    def parts(self) -> list[str | None]:
        """The folds as they are written, `1/5` to `5/5`; a single None without folds."""
        return [None] if self.folds is None else [str(fold) for fold in all_folds(self.folds)]

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
            check_method_name(entry.method)
        for stream in self.streams:
            check_stream_name(stream)
            refuse_folds(stream, self.parts[0])

        from sodap.backbones import native_size  # imports timm, which the checks above do not need

        for stream in self.streams:
            for entry in entries:
                config = self.config(stream, entry, self.seeds[0], fold=self.parts[0])
                native_size(config.backbone)
                check_weights(config.weights)

    def config(
        self,
        stream: str,
        entry: Entry,
        seed: int,
        setting: Setting | None = None,
        fold: str | None = None,
    ) -> RunConfig:
        chosen = as_changes(setting or {})
        own = [f"stream={stream}", f"method={entry.method}", f"seed={seed}"]
        own += [f"fold={fold}"] if fold is not None else []
        return load_config(self.recipe, [*chosen, *self.changes, *entry.changes, *own])

    def home(self, stream: str, entry: Entry, fold: str | None = None) -> Path:
        place = self.out / folder_name(stream)
        if fold is not None:
            place /= f"fold-{fold.replace('/', '-of-')}"
        return place / entry.name

    def compared(self, method: str) -> list[Setting]:
        return settings_to_compare(method, self.changes) if self.search else []
