"""Whether the rows of a table were trained and tested on equal terms, as a comparison needs.

What a method chooses for itself does not count: its options, and the learning rate that a search
found for it. Nor does what changes no score on purpose: the seed, the machine, the commit, and how
steps are computed. The size of images is part of which table a run belongs to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]

TRAINING = ("epochs", "patience", "batch_size", "weight_decay", "augmentation")
DEALING = ("split_seed", "splits")
"""How images come to a split, unless the list of them is at hand."""
DEALT = "dealt"
"""What a record is given, besides what it holds: the digest of the list of splits beside it."""
LIST, NUMBER = "splits.csv (SHA-256)", "number of images"
"""What is said of these two."""
NAMED = 3
"""With more methods than these on one side, that side is called the others."""


@dataclass(frozen=True)
class Term:
    """One thing that should be equal."""

    value: Any
    """What is compared."""
    words: str
    """What is said of it, which may be less."""


def unequal_terms(rows: Mapping[str, Mapping[int, Record]]) -> list[str]:
    """In what the rows of one table (seed -> record) differ though they should not."""
    every = _differences({row: runs.values() for row, runs in rows.items()})
    found = {key: words for key, words in every.items() if not _is_dealt(key)}
    # Rows are paired by seed, and each seed may have splits of its own.
    for seed in sorted({seed for runs in rows.values() for seed in runs}):
        of_seed = {row: [runs[seed]] for row, runs in rows.items() if seed in runs}
        for key, words in _differences(of_seed).items():
            if _is_dealt(key):
                found.setdefault(key, words)
    return list(found.values())


def _is_dealt(key: str) -> bool:
    """Whether it says which images are in which split."""
    return key in (*DEALING, LIST) or key.startswith(NUMBER)


def _differences(rows: Mapping[str, Iterable[Record]]) -> dict[str, str]:
    """Each key in which rows differ, with the words for it."""
    terms = {row: [_terms(record) for record in records] for row, records in rows.items()}
    terms = _by_their_lists(terms)
    keys = dict.fromkeys(key for runs in terms.values() for run in runs for key in run)
    found = {}
    for key in keys:
        values = {
            row: {_plain(run[key].value): run[key].words for run in runs if key in run}
            for row, runs in terms.items()
            if not _says_so(row, key)
        }
        known = [each.keys() for each in values.values() if each]
        # Runs of one row that differ are told of elsewhere: here, it is about rows.
        if any(each != known[0] for each in known):
            found[key] = _told(key, values)
    return found


def dealt(folder: Path) -> str | None:
    """The digest of a run's list of splits; None for streams that are made in memory."""
    path = folder / "splits.csv"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _terms(record: Record) -> dict[str, Term]:
    """A key that a record lacks is not known to be another."""
    config, stream, backbone = record["config"], record["stream"], record["backbone"]
    found: dict[str, Term] = {}
    # Closed forms take no steps; how long and with which batches they would is all the same.
    if any(stage.get("epochs", 1) for stage in record["stages"]):
        training = config.get("training", {})
        found = {f"training.{k}": _setting(training[k]) for k in TRAINING if k in training}
    found |= {key: _setting(config[key]) for key in ("precision", *DEALING) if key in config}
    if record.get(DEALT):
        found[DEALT] = Term(record[DEALT], record[DEALT][:8])
    if backbone.get("sha256"):
        found["weights"] = Term(backbone["sha256"], f"SHA-256 {backbone['sha256'][:8]}")
    found["classes"] = Term(stream["classes"], ", ".join(stream["classes"]))
    domains = stream["domains"]
    names = [domain["name"] for domain in domains]
    found["domains"] = Term(names, ", ".join(names))
    if all("counts" in domain for domain in domains):
        counts = [domain["counts"] for domain in domains]
        sums = [str(sum(sum(each[kind]) for each in counts)) for kind in counts[0]]
        found[f"{NUMBER} ({'/'.join(counts[0])})"] = Term(counts, "/".join(sums))
    return found


def _setting(value: Any) -> Term:
    if value is None:
        return Term(value, "none")
    return Term(value, value if isinstance(value, str) else json.dumps(value))


def _by_their_lists(terms: Mapping[str, list[dict[str, Term]]]) -> dict[str, list[dict[str, Term]]]:
    """Where every run has left the list of its splits, equal lists count, however they were made.

    Lists that differ are told by the settings that made them so, if these differ too.
    """
    runs = [run for each in terms.values() for run in each]
    lists = {run[DEALT].value if DEALT in run else None for run in runs}
    made = {_plain([run[key].value for key in DEALING if key in run]) for run in runs}
    dropped: tuple[str, ...] = DEALING
    if None in lists or (len(lists) > 1 and len(made) > 1):
        dropped = (DEALT,)
    elif len(lists) == 1:
        dropped = (DEALT, *DEALING)
    return {
        row: [
            {LIST if key == DEALT else key: term for key, term in run.items() if key not in dropped}
            for run in each
        ]
        for row, each in terms.items()
    }


def _says_so(row: str, key: str) -> bool:
    """Whether the name of a variant, `METHOD@KEY=VALUE`, tells of this difference."""
    named = {change.partition("=")[0] for change in row.split("@")[1:]}
    return key in named or key.split(".")[-1] in named


def _told(key: str, values: Mapping[str, Mapping[str, str]]) -> str:
    """`training.epochs is 1 for `sequential` and 8 for `anchored``."""
    sides: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for row, found in values.items():
        for value, word in found.items():
            sides.setdefault(value, []).append(f"`{row}`")
            words[value] = word
    if len(set(words.values())) < len(words):  # sums that are equal, of parts that are not
        words = {value: value for value in words}
    order = sorted(sides, key=lambda value: len(sides[value]))  # stable: else as they come
    rest = order[-1] if len(sides[order[-1]]) > NAMED else None
    told = [
        f"{words[value]} for {'the others' if value == rest else _listed(sides[value])}"
        for value in order
    ]
    return f"{key} is {_listed(told)}"


def _listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
