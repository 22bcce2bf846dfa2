"""Which setting a method gets on a stream, chosen before anything is tested.

A method's candidates (at most `BUDGET`, the same for all) learn the first two domains. If the best
learning rate is the first or the last of those tried, the next one beyond is tried as well, at most
`BEYOND` times. Validation images stand in for test images, and the seed is one that no run of a
grid has. So neither a test image nor a later domain has a say, as in a clinic that must decide
before the data of next year.

The validation images also stop the epochs, of every method alike: scores are a little too good,
which harms no comparison between candidates.

What was compared, with which scores, is a file beside the runs and a part of their records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sodap.errors import SodapError
from sodap.grids.variants import SIGN
from sodap.methods import find_method
from sodap.runs.config import RunConfig, difference
from sodap.storage import read_json, write_json
from sodap.streams import Stream

STAGES = 2
SEED = 999_983
FILE = "search.json"

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Learning rates that a search may try, each about three times the one before."""
BUDGET = 4
"""Maximum number of candidates of a method."""
BEYOND = 2
"""Maximum number of further learning rates, tried while the best one is the lowest or the highest
tried so far. So the same candidates suit prompts, heads and whole networks."""

Setting = Mapping[str, Any]
"""Some keys of a run, of its training or of its method, with values."""


def settings_to_compare(method: str, changes: Sequence[str] = ()) -> list[Setting]:
    """The method's candidates, without keys that `changes` fix; none where no choice is left."""
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
    """As a user would write it: `{"lr": 0.001}` -> `["lr=0.001"]`."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in setting.items()
    ]


def validation_twin(stream: Stream) -> Stream:
    """The first two domains, with their validation images in the place of their test images."""
    domains = tuple(replace(domain, test=domain.val) for domain in stream.domains[:STAGES])
    name = f"{stream.name}, validation images of {' and '.join(d.name for d in domains)}"
    return replace(stream, name=name, domains=domains, unseen=(), rows=())


def score_of(record: Mapping[str, Any]) -> float:
    """Final average accuracy of a candidate's run on the twin."""
    return float(record["metrics"]["accuracy"]["final_average"])


def one_beyond(settings: Sequence[Setting], scores: Sequence[float | None]) -> Setting | None:
    """The best setting with the next learning rate, if its own is an end of those tried."""
    best = _best(scores)
    if best is None or "lr" not in settings[best]:
        return None
    rate = settings[best]["lr"]
    tried = {setting["lr"] for setting in settings if "lr" in setting}
    if len(tried) == 1:
        return None  # the method does not ask for another
    further: list[float] = []
    if rate == max(tried):
        further = [each for each in RATES if each > rate][:1]
    elif rate == min(tried):
        further = [each for each in RATES if each < rate][-1:]
    return {**settings[best], "lr": further[0]} if further else None


def _best(scores: Sequence[float | None]) -> int | None:
    """The place of the best score; of equal ones, the earlier. None where nothing was scored."""
    scored = [(score, -index) for index, score in enumerate(scores) if score is not None]
    return -max(scored)[1] if scored else None


def choose(
    base: RunConfig,
    settings: Sequence[Setting],
    scores: Sequence[float | None],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a search: what was compared, with which scores, and the best of it."""
    best = _best(scores)
    if best is None:
        raise SodapError(f"no setting of {base.method} could be trained on {base.stream}")
    return {
        "stream": base.stream,
        "method": base.method,
        "what": f"final average accuracy on the validation images of the first {STAGES} stages",
        "budget": BUDGET,
        "beyond": BEYOND,
        "seed": SEED,
        "candidates": [
            {"setting": dict(setting), "score": score}
            for setting, score in zip(settings, scores, strict=True)
        ],
        "chosen": dict(settings[best]),
        "config": base.described(),
        "environment": dict(environment),
    }


def write_search(folder: Path, search: Mapping[str, Any]) -> None:
    write_json(folder / FILE, search)


def read_search(
    folder: Path, base: RunConfig, settings: Sequence[Setting]
) -> dict[str, Any] | None:
    """The search of an earlier time, if it began with the same settings; an error if others."""
    path = folder / FILE
    if not path.is_file():
        return None
    search = read_json(path)
    changed = difference(search["config"], base.described())
    if changed:
        raise SodapError(f"{path} was made with another {changed}; choose another --out")
    if not settings:
        raise SodapError(
            f"{path.parent} was searched ({' '.join(as_changes(search['chosen']))} chosen), and "
            f"--no-search takes the defaults; leave it away or choose another --out"
        )
    begun = [each["setting"] for each in search["candidates"]][: len(settings)]
    alike = begun == [dict(each) for each in settings]
    if not alike or search.get("beyond") != BEYOND:
        raise SodapError(f"{path} compared other settings; choose another --out")
    return search


def refuse_unsearched(home: Path) -> None:
    """No search beside runs without one, of the method or its variants: they would not agree."""
    for name in (home.name, f"{home.name}{SIGN}*"):
        for config in sorted(home.parent.glob(f"{name}/s*/config.json")):
            record = config.with_name("record.json")
            if not record.is_file() or read_json(record).get("search") is None:
                raise SodapError(
                    f"{config.parent} was run without a search (--no-search, or settings fixed); "
                    f"choose another --out"
                )


def for_the_record(search: Mapping[str, Any]) -> dict[str, Any]:
    """What a run says of the search that chose its settings; all of it is in the file."""
    return {
        key: search[key] for key in ("what", "budget", "beyond", "seed", "candidates", "chosen")
    }
