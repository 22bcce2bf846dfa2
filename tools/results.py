"""Keep runs as results, and write docs/results.md and the effects in docs/methods.md from them.

python -m tools.results keep runs/table1                 # into results/STREAM/METHOD-sSEED.json
python -m tools.results keep --commit HASH runs/table1   # for runs on a machine without git
python -m tools.results write                            # the two pages, and results/summary.json

`keep` takes folders of runs and single records. Results of other methods and searches that were
kept before are left as they are. All runs of a method must have the same settings, else `write`
fails; if they ran different commits, the page says so. Variants (METHOD@OPTION) are kept beside the
methods and appear only in docs/methods.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from sodap.errors import SodapError
from sodap.reporting import Result, StreamTable, load_results, make_tables
from sodap.reporting.tables.comparability import mixed_rows
from sodap.runs.kept import KeptResult
from sodap.runs.reading import read_record
from sodap.runs.record import Environment, RunRecord, SearchInfo
from sodap.storage import as_json, write_bytes, write_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
SUMMARY = RESULTS / "summary.json"
PAGE = ROOT / "docs" / "results.md"
METHODS = ROOT / "docs" / "methods.md"

MAX_BYTES = 8_000
"""Largest size of a kept result, so that a person can read it."""
COMMIT = "commit"
"""The only setting in which the runs of a method may differ."""


# ---------------------------------------------------------------------- keeping


def kept(record: RunRecord, commit: str | None = None) -> KeptResult:
    """The part of a record that is kept; `commit` is for runs that do not know theirs."""
    if record.earlier_environments:
        raise SystemExit("a run that was resumed with other code is not a result")
    try:
        result = KeptResult.of(record)
    except SodapError as error:
        raise SystemExit(str(error)) from error
    environment = _with_commit(result.environment, commit)
    return result.model_copy(update={"environment": environment})


def _with_commit(environment: Environment, given: str | None) -> Environment:
    own = environment.commit
    if own is not None:
        if given not in (None, own):
            raise SystemExit(f"a run was of commit {own}, not of {given}")
        return environment
    if given is None:
        raise SystemExit("a run does not know its commit; name it with --commit")
    if not re.fullmatch(r"[0-9a-f]{40}", given):
        raise SystemExit(f"'{given}' is not the full hash of a commit")
    return environment.model_copy(update={"commit": given, "commit_given": True})


def keep(places: Sequence[str], commit: str | None = None) -> list[Path]:
    """Write the results of the runs at `places`, and the searches that chose their settings."""
    results, unfinished = load_results([Path(place) for place in places])
    if unfinished:
        print(f"left out {unfinished} unfinished runs", file=sys.stderr)
    files = []
    searches: dict[Path, dict[str, SearchInfo | None]] = {}
    for record in (result.record for result in results):
        config = record.config
        folder = RESULTS / config.stream
        content = as_json(kept(record, commit).model_dump(mode="json"))
        if len(content) > MAX_BYTES:
            raise SystemExit(f"the result of {record.row} is larger than {MAX_BYTES} bytes")
        fold = "" if config.fold is None else f" fold {config.fold}"
        name = f"{record.row}{fold}".replace(" fold ", "-f").replace("/", "of")
        files.append(folder / f"{name}-s{config.seed}.json")
        write_bytes(files[-1], content)
        found = searches.setdefault(folder / "search.json", {})
        searched = f"{config.method}{fold}"
        if found.setdefault(searched, record.search) != record.search:
            raise SystemExit(f"the runs of {searched} have different searches")
    for file, found in searches.items():
        known = read_searches(file) | found
        chosen = {name: s.model_dump(mode="json") for name, s in sorted(known.items()) if s}
        if chosen:
            write_json(file, chosen)
    return files


# ---------------------------------------------------------------------- reading


def result_files() -> list[Path]:
    """The kept results; `search` folders and files hold comparisons of settings."""
    return sorted(
        file
        for file in RESULTS.glob("*/*.json")
        if file.parent.name != "search" and file.name != "search.json"
    )


def load() -> list[RunRecord]:
    return [read_record(file) for file in result_files()]


def load_plain() -> list[RunRecord]:
    """Results without variants, which are not ranked."""
    return [record for record in load() if not record.variant]


def read_searches(file: Path) -> dict[str, SearchInfo | None]:
    content = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return {method: SearchInfo.model_validate(search) for method, search in content.items()}


def searches_of(stream: str) -> dict[str, SearchInfo]:
    """Searches of the methods on a stream, by method."""
    found = read_searches(RESULTS / stream / "search.json")
    return {method: search for method, search in found.items() if search}


def tables(records: Iterable[RunRecord] | None = None) -> dict[str, StreamTable]:
    """One table per stream, of `records` or of all results without variants."""
    results = [Result.of(record) for record in (load_plain() if records is None else records)]
    for row, keys in mixed_rows(results).items():
        if keys != [COMMIT]:
            raise SystemExit(f"the runs of {row} differ in {', '.join(keys)}; keep one setting")
    made = make_tables(results)
    found = {table.stream: table for table in made}
    if len(found) < len(made):
        raise SystemExit("the results of a stream have two backbones; keep one")
    return found


def main() -> None:
    from tools import results_page  # it imports this module

    match sys.argv[1:]:
        case ["keep", "--commit", commit, *places] if places:
            list_files(keep(places, commit))
        case ["keep", *places] if places:
            list_files(keep(places))
        case ["write"]:
            write_json(SUMMARY, results_page.summary())
            write_bytes(PAGE, results_page.page().encode())
            write_bytes(METHODS, results_page.with_effects(METHODS.read_text("utf-8")).encode())
        case _:
            raise SystemExit(__doc__)


def list_files(files: Sequence[Path]) -> None:
    for file in files:
        print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
