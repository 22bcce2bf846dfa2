"""Search for the settings of a method on a stream, before anything is tested.

The candidates of a method (at most `BUDGET`, the same number for all) learn the first two domains.
If the best learning rate is the lowest or highest tried, the next one is tried as well, at most
`MAX_EXTENSIONS` times. Validation images replace test images, and no run of a grid has the seed of
the search. So the choice depends on no test image and on no later domain.

The validation images also stop the epochs of every candidate. That makes all scores slightly too
good, but does not favour any candidate.

The candidates and their scores are written to a file beside the runs, and to their records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sodap.errors import SodapError
from sodap.grids.variants import SIGN
from sodap.methods import find_method
from sodap.runs.config import RunConfig, difference
from sodap.runs.reading import checked, read_record
from sodap.runs.record import Candidate, Environment, SearchInfo
from sodap.storage import read_json, write_json

if TYPE_CHECKING:
    from sodap.streams import Stream

STAGES = 2
SEED = 999_983
FILE = "search.json"

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Learning rates that a search may try, each about three times the one before."""
BUDGET = 4
"""Maximum number of candidates of a method."""
MAX_EXTENSIONS = 2
"""Maximum number of further learning rates, tried while the best one is the lowest or the highest
tried so far. So the same candidates suit prompts, heads and whole networks."""

Setting = Mapping[str, Any]
"""Keys of a run, its training or its method, with values."""


class SearchRecord(SearchInfo):
    """Content of `search.json`."""

    stream: str
    method: str
    config: RunConfig
    environment: Environment | None
    """Environment of the first candidate; None if it is not known."""


def settings_to_compare(method: str, changes: Sequence[str] = ()) -> list[Setting]:
    """Candidates of a method without the keys that `changes` fix; none if no choice is left."""
    kind = find_method(method)
    if not kind.learns_by_gradient:
        return []
    fixed = {change.partition("=")[0] for change in changes}
    left: list[Setting] = []
    for candidate in kind.candidates:
        free = {key: value for key, value in candidate.items() if key not in fixed}
        if free and free not in left:
            left.append(free)
    return left if len(left) > 1 else []


def as_changes(setting: Setting) -> list[str]:
    """A setting as a user writes it: `{"lr": 0.001}` -> `["lr=0.001"]`."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in setting.items()
    ]


def validation_twin(stream: Stream) -> Stream:
    """The first two domains, with validation images instead of test images."""
    domains = tuple(replace(domain, test=domain.val) for domain in stream.domains[:STAGES])
    name = f"{stream.name}, validation images of {' and '.join(d.name for d in domains)}"
    return replace(stream, name=name, domains=domains, unseen=(), rows=())


def next_candidate(settings: Sequence[Setting], scores: Sequence[float | None]) -> Setting | None:
    """The best setting with the next learning rate, if its own is the lowest or highest tried."""
    best = _best(scores)
    if best is None or "lr" not in settings[best]:
        return None
    rate = settings[best]["lr"]
    tried = {setting["lr"] for setting in settings if "lr" in setting}
    if len(tried) == 1:
        return None  # the method does not vary it
    further: list[float] = []
    if rate == max(tried):
        further = [each for each in RATES if each > rate][:1]
    elif rate == min(tried):
        further = [each for each in RATES if each < rate][-1:]
    return {**settings[best], "lr": further[0]} if further else None


def _best(scores: Sequence[float | None]) -> int | None:
    """Index of the best score, the first of equal ones; None if there is no score."""
    scored = [(score, -index) for index, score in enumerate(scores) if score is not None]
    return -max(scored)[1] if scored else None


def choose(
    base: RunConfig,
    settings: Sequence[Setting],
    scores: Sequence[float | None],
    environment: Environment | None,
) -> SearchRecord:
    """The record of a search that compared `settings`."""
    best = _best(scores)
    if best is None:
        raise SodapError(f"training broke with every setting of {base.method} on {base.stream}")
    return SearchRecord(
        stream=base.stream,
        method=base.method,
        what=f"final average accuracy on the validation images of the first {STAGES} stages",
        budget=BUDGET,
        beyond=MAX_EXTENSIONS,
        seed=SEED,
        candidates=[
            Candidate(setting=dict(setting), score=score)
            for setting, score in zip(settings, scores, strict=True)
        ],
        chosen=dict(settings[best]),
        config=base.resolved(),
        environment=environment,
    )


def write_search(folder: Path, search: SearchRecord) -> None:
    write_json(folder / FILE, search.model_dump(mode="json"))


def read_search(folder: Path, base: RunConfig, settings: Sequence[Setting]) -> SearchRecord | None:
    """The search in a folder; None if there is none, an error if it compared other settings."""
    path = folder / FILE
    if not path.is_file():
        return None
    search = checked(SearchRecord, upgrade_search(read_json(path)), path, "search")
    changed = difference(search.config.model_dump(mode="json"), base.described())
    if changed:
        raise SodapError(f"{path} was made with another {changed}; choose another --out")
    if not settings:
        raise SodapError(
            f"{path.parent} was searched ({' '.join(as_changes(search.chosen))} chosen), and "
            f"--no-search takes the defaults; leave it out or choose another --out"
        )
    begun = [each.setting for each in search.candidates][: len(settings)]
    if begun != [dict(each) for each in settings] or search.beyond != MAX_EXTENSIONS:
        raise SodapError(f"{path} compared other settings; choose another --out")
    return search


def upgrade_search(content: dict[str, Any]) -> dict[str, Any]:
    """Content of a `search.json`; older files have an empty environment if it is not known."""
    return content | {"environment": content.get("environment") or None}


def check_searched(home: Path) -> None:
    """Raise an error if a method or its variants have runs without a search.

    A search beside them would choose other settings than theirs.
    """
    for name in (home.name, f"{home.name}{SIGN}*"):
        for config in sorted(home.parent.glob(f"{name}/s*/config.json")):
            record = config.with_name("record.json")
            if not record.is_file() or read_record(record).search is None:
                raise SodapError(
                    f"{config.parent} was run without a search (--no-search, or settings fixed); "
                    f"choose another --out"
                )
