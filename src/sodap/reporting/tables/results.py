"""Results of finished runs, read from folders of runs and from kept records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sodap.errors import SodapError
from sodap.runs.pooling import pool_folds
from sodap.runs.reading import read_record
from sodap.runs.record import RunRecord
from sodap.streams.folds import Fold


@dataclass(frozen=True)
class Result:
    """A run in a table."""

    record: RunRecord
    row: str
    """Row of the table: the method, or the name of its variant."""
    path: str = ""
    splits_digest: str | None = None
    """SHA-256 of the run's `splits.csv`; None if it has none."""

    @property
    def backbone(self) -> str:
        """Name and image size; a stream has one table for each backbone."""
        found = self.record.backbone
        return f"{found.name} at {found.image_size} pixels" if found else "unknown backbone"

    @property
    def fold(self) -> Fold | None:
        """The fold of the run; None for the usual splits."""
        text = self.record.config.fold
        return None if text is None else Fold.parse(text)

    @classmethod
    def of(cls, record: RunRecord, folder: Path | None = None, row: str = "") -> Result:
        digest = None
        if folder is not None and (folder / "splits.csv").is_file():
            digest = hashlib.sha256((folder / "splits.csv").read_bytes()).hexdigest()
        return cls(record, row or record.row, str(folder or ""), digest)


def load_results(places: Iterable[Path]) -> tuple[list[Result], int]:
    """Results of the finished runs in folders and files, and the number of unfinished runs."""
    results: list[Result] = []
    unfinished = 0
    for place in places:
        for path in record_files(place):
            record = read_record(path) if path.is_file() else None
            if record is None or record.status != "finished":
                unfinished += 1
            elif path.name == "record.json":
                results.append(Result.of(record, path.parent))
            else:  # a kept result
                results.append(Result(record, record.row, str(path)))
    if not results:
        more = f" ({unfinished} unfinished)" if unfinished else ""
        raise SodapError(f"found no finished run in {', '.join(map(str, places))}{more}")
    return results, unfinished


def pool_results(results: Iterable[Result]) -> tuple[list[Result], list[str]]:
    """Results in which the folds of each row and seed are one.

    Also the runs that miss folds and are left out, such as `ridge seed 0 (3 of 5 folds)`.
    """
    found: list[Result] = []
    parts: dict[tuple[str, int], dict[Fold, Result]] = {}
    for result in results:
        fold = result.fold
        if fold is None:
            found.append(result)
            continue
        own = parts.setdefault((result.row, result.record.config.seed), {})
        other = own.setdefault(fold, result)
        if other is not result:
            raise two_runs(other, result)
    incomplete: list[str] = []
    for (row, seed), own in parts.items():
        runs = [own[fold] for fold in sorted(own, key=lambda fold: fold.number)]
        count = next(iter(own)).of
        if len(runs) < count:
            incomplete.append(f"{row} seed {seed} ({len(runs)} of {count} folds)")
            continue
        digests = [run.splits_digest for run in runs]
        digest = hashlib.sha256("".join(map(str, digests)).encode()).hexdigest()
        record = pool_folds([run.record for run in runs])
        found.append(Result(record, row, runs[0].path, None if None in digests else digest))
    return found, incomplete


def two_runs(one: Result, other: Result) -> SodapError:
    """The error for two results of the same row, seed and fold."""
    config = one.record.config
    paths = f" ({one.path} and {other.path})" if other.path else ""
    fold = "" if config.fold is None else f" and fold {config.fold}"
    return SodapError(
        f"found two runs of {one.row} with seed {config.seed}{fold} on {one.record.stream.name}"
        f"{paths}; a table takes one run per method and seed"
    )


def record_files(place: Path) -> list[Path]:
    """Paths of the records at `place`: a file, the folder of a run, or a folder with runs below it.

    The record of a single run may be missing, if the run was killed early. Candidates of a search
    (METHOD/search/INDEX) are left out, since they were never tested.
    """
    if not place.exists():
        raise SodapError(f"{place} does not exist")
    if place.is_file():
        return [place]
    if (place / "config.json").is_file():
        return [place / "record.json"]
    found = place.rglob("record.json")
    return sorted(path for path in found if not _is_candidate(path.parent.relative_to(place)))


def _is_candidate(folder: Path) -> bool:
    """Whether a folder ends in `search/INDEX`; a stream may be called `search` too."""
    return folder.parent.name == "search" and folder.name.isdecimal()
