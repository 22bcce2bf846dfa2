"""Whether the runs of a table can be compared: which settings differ that should be equal.

Between methods, the settings that a method chooses for itself may differ: its options, and the
learning rate that a search found for it. So may settings without an effect on the scores: the
device, the commit, and how steps are computed. The image size is part of which table a run is in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sodap.reporting.tables.results import Result
from sodap.runs.config import RunConfig
from sodap.runs.record import RunRecord

TRAINING = ("epochs", "patience", "batch_size", "weight_decay", "augmentation")
MAX_NAMED = 3
"""A larger group of methods with the same value is called `the others`."""

Settings = dict[str, tuple[Any, str]]
"""Key -> value and its text, which may be shorter."""


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """All settings with dotted keys, such as `training.lr`."""
    return dict(_flat(config.model_dump(mode="json"), ""))


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ------------------------------------------------------------------ runs of one method


def mixed_rows(results: Iterable[Result]) -> dict[str, list[str]]:
    """Settings besides the seed in which runs of one row differ: `ROW on STREAM` -> keys."""
    first: dict[tuple[str, str, str | None], RunRecord] = {}
    found: dict[str, set[str]] = {}
    for result in results:
        name = f"{result.row} on {result.record.stream.name}"
        place = name, result.backbone, result.record.config.fold
        one = first.setdefault(place, result.record)
        if keys := differing_settings(one, result.record):
            found.setdefault(name, set()).update(keys)
    return {name: sorted(keys) for name, keys in found.items()}


def differing_settings(one: RunRecord, other: RunRecord) -> list[str]:
    """Settings besides the seed, and parts of the code, in which two runs differ."""
    first, second = _origin(one), _origin(other)
    return sorted(k for k in first.keys() | second.keys() if first.get(k) != second.get(k))


def _origin(record: RunRecord) -> dict[str, Any]:
    """Everything that the runs of a row must share.

    Paths are left out: weights are compared by their digest, images by their number.
    """
    settings = flat_settings(record.config)
    for key in ("seed", "data", "weights"):
        del settings[key]
    return settings | {
        "domains": record.stream.domains,
        "weights": record.backbone.sha256 if record.backbone else None,
        "commit": record.environment.commit if record.environment else None,
        "version": record.environment.sodap if record.environment else None,
    }


# ------------------------------------------------------------------ runs of several methods


def unequal_settings(rows: Mapping[str, Mapping[int, Result]]) -> list[str]:
    """Sentences about settings that should be equal in all rows (row -> seed -> result)."""
    found = _differences(
        {row: [_conditions(run.record) for run in runs.values()] for row, runs in rows.items()}
    )
    # Rows are compared seed by seed, and each seed may have its own splits.
    for seed in sorted({seed for runs in rows.values() for seed in runs}):
        splits = _splits({row: runs[seed] for row, runs in rows.items() if seed in runs})
        found = _differences({row: [each] for row, each in splits.items()}) | found
    return list(found.values())


def _conditions(record: RunRecord) -> Settings:
    config, stream = record.config, record.stream
    settings: Settings = {}
    if any(stage.epochs for stage in record.stages):  # not for methods in closed form
        training = config.training.model_dump(mode="json")
        settings = {f"training.{key}": _with_text(training[key]) for key in TRAINING}
    settings["precision"] = _with_text(config.precision)
    if record.backbone is not None:
        digest = record.backbone.sha256
        settings["weights"] = (digest, f"SHA-256 {digest[:8]}")
    settings["classes"] = (stream.classes, ", ".join(stream.classes))
    names = [domain.name for domain in stream.domains]
    settings["domains"] = (names, ", ".join(names))
    return settings


def _splits(runs: Mapping[str, Result]) -> dict[str, Settings]:
    """Which images are in which split, for the runs of one seed.

    If every run has left a list of its splits, the lists count, however they were made. Lists that
    differ are described by the settings that made them, if these differ as well.
    """
    digests = {run.splits_digest for run in runs.values()}
    dealing = {
        row: {
            "split_seed": _with_text(run.record.config.split_seed),
            "splits": _with_text(run.record.config.splits),
            "fold": _with_text(run.record.config.fold),
        }
        for row, run in runs.items()
    }
    same_dealing = len({_plain(each) for each in dealing.values()}) == 1
    found: dict[str, Settings] = {}
    for row, run in runs.items():
        found[row] = {}
        if None in digests or (len(digests) > 1 and not same_dealing):
            found[row] |= dealing[row]
        elif len(digests) > 1 and run.splits_digest is not None:
            found[row]["splits.csv (SHA-256)"] = (run.splits_digest, run.splits_digest[:8])
        counts = [domain.counts.model_dump() for domain in run.record.stream.domains]
        sums = [str(sum(sum(each[kind]) for each in counts)) for kind in counts[0]]
        found[row][f"number of images ({'/'.join(counts[0])})"] = (counts, "/".join(sums))
    return found


def _differences(rows: Mapping[str, Iterable[Settings]]) -> dict[str, str]:
    """Key -> sentence, for every key whose values differ between rows."""
    keys = dict.fromkeys(key for runs in rows.values() for run in runs for key in run)
    found = {}
    for key in keys:
        values = {
            row: {_plain(run[key][0]): run[key][1] for run in runs if key in run}
            for row, runs in rows.items()
            if not _in_name(row, key)
        }
        known = [each.keys() for each in values.values() if each]
        # `mixed_rows` reports runs of one row that differ.
        if any(each != known[0] for each in known):
            found[key] = _sentence(key, values)
    return found


def _in_name(row: str, key: str) -> bool:
    """Whether the name of a variant, `METHOD@KEY=VALUE`, contains this setting."""
    named = {change.partition("=")[0] for change in row.split("@")[1:]}
    return key in named or key.split(".")[-1] in named


def _sentence(key: str, values: Mapping[str, Mapping[str, str]]) -> str:
    """Say how a setting differs: `training.epochs is 1 for `sequential` and 8 for `anchored``."""
    rows: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for row, found in values.items():
        for value, text in found.items():
            rows.setdefault(value, []).append(f"`{row}`")
            texts[value] = text
    if len(set(texts.values())) < len(texts):  # different values with equal short texts
        texts = {value: value for value in texts}
    order = sorted(rows, key=lambda value: len(rows[value]))
    largest = order[-1] if len(rows[order[-1]]) > MAX_NAMED else None
    parts = [
        f"{texts[value]} for {'the others' if value == largest else _listed(rows[value])}"
        for value in order
    ]
    return f"{key} is {_listed(parts)}"


def _listed(names: list[str]) -> str:
    """Join names as in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _with_text(value: Any) -> tuple[Any, str]:
    if value is None:
        return value, "none"
    return value, value if isinstance(value, str) else json.dumps(value)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
