"""Grids, with all tasks in this process; real workers are in test_workers and the CLI's tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sodap.grids.grid_run as grid_run
import sodap.grids.task as task_module
import sodap.streams.registry as stream_registry
from sodap.errors import SodapError
from sodap.grids import Grid, GridCallback, Task, grid_names, read_grid, run_grid
from sodap.grids.search import SearchRecord
from sodap.grids.variants import Entry, read_entry
from sodap.methods import find_method, method_names
from sodap.runs import RunCallback, RunRecord, run
from sodap.runs.reading import read_log, read_record
from sodap.runs.record import StageRecord
from sodap.storage import folder_lock, read_json, write_json
from sodap.streams import Stage, Stream
from tests.conftest import make_split, make_stream
from tests.grids.conftest import QUICK, Troubled, Watcher, record_path

pytestmark = pytest.mark.usefixtures("quick_methods_and_stream")


def a_grid(out: Path, methods: str = "ridge sequential", seeds: int = 2, **more: Any) -> Grid:
    changes = more.pop("changes", QUICK)
    return Grid(["stripes"], methods.split(), range(seeds), out, changes, jobs=0, **more)


def record(out: Path, method: str, seed: int) -> RunRecord:
    return read_record(record_path(out, method, seed))


def search_of(out: Path, method: str = "sequential") -> SearchRecord:
    return SearchRecord.model_validate(read_json(out / "stripes" / method / "search.json"))


def test_a_grid_searches_then_runs_then_has_nothing_to_do(tmp_path: Path) -> None:
    watcher = Watcher()
    summary = run_grid(a_grid(tmp_path, command=["sodap", "bench"]), watcher)
    assert (summary.done, summary.finished, summary.failures) == (4, 0, {})
    assert watcher.total == len(watcher.done) == 6
    assert [label.split(" search")[0] for label in watcher.done[:2]] == ["stripes sequential"] * 2

    search = search_of(tmp_path)
    scores = [each.score or 0 for each in search.candidates]
    assert search.chosen == search.candidates[scores.index(max(scores))].setting
    assert not (tmp_path / "stripes" / "sequential" / "search").exists()
    assert not (tmp_path / "stripes" / "ridge" / "search.json").exists()

    found = record(tmp_path, "sequential", 1)
    assert found.status == "finished"
    assert found.config.training.weight_decay == search.chosen["weight_decay"]
    assert found.config.seed == 1
    assert found.search is not None
    assert found.search.candidates == search.candidates
    assert found.jobs == 1
    assert found.command == ["sodap", "bench"]
    assert record(tmp_path, "ridge", 0).search is None
    assert len(found.R.accuracy) == 2

    again = Watcher()
    summary = run_grid(a_grid(tmp_path), again)
    assert (summary.done, summary.finished, again.total) == (0, 4, 0)
    more = Watcher()
    summary = run_grid(a_grid(tmp_path, seeds=3), more)
    assert (summary.done, summary.finished) == (2, 4)
    assert sorted(more.done) == ["stripes ridge seed 2", "stripes sequential seed 2"]


def test_a_search_tries_higher_rates_twice_at_most(tmp_path: Path) -> None:
    watcher = Watcher()
    summary = run_grid(a_grid(tmp_path, "rising", seeds=1), watcher)
    assert (summary.done, watcher.total) == (1, len(watcher.done)) == (1, 5)
    search = search_of(tmp_path, "rising")
    assert [each.setting["lr"] for each in search.candidates] == [1e-3, 1e-2, 3e-2, 1e-1]
    assert search.chosen == {"lr": 1e-1}
    assert record(tmp_path, "rising", 0).config.training.lr == 1e-1


def test_images_are_decoded_once_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    for number in range(40):  # two domains, two classes, ten images each, all different
        place = tmp_path / "own" / f"d{number % 2}" / f"c{number // 2 % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    events: list[tuple[int, int] | str] = []

    class Listener(GridCallback):
        def images_decoded(self, done: int, total: int) -> None:
            events.append((done, total))

        def task_done(self, task: Task, record: RunRecord | None) -> None:
            events.append(task.label)

    grid = Grid([str(tmp_path / "own")], ["ridge"], range(2), tmp_path / "out", QUICK, jobs=0)
    summary = run_grid(grid, Listener())
    assert (summary.done, summary.failures) == (2, {})
    assert events[-3:] == [(20, 20), "own ridge seed 0", "own ridge seed 1"]
    assert events.count((20, 20)) == 2  # once a domain


# ---------------------------------------------------------------------- variants


def test_a_variant_uses_the_search_of_its_method(tmp_path: Path) -> None:
    run_grid(a_grid(tmp_path, "sequential", seeds=2))
    watcher, name = Watcher(), "sequential@patience=7"
    summary = run_grid(a_grid(tmp_path, f"sequential {name}", seeds=2), watcher)
    assert (summary.done, summary.finished) == (2, 2)
    assert watcher.done == [f"stripes {name} seed {seed}" for seed in range(2)]
    plain, changed = (record(tmp_path, each, 1) for each in ("sequential", name))
    assert (plain.variant, plain.row) == (None, "sequential")
    assert (changed.variant, changed.row) == (name, name)
    assert changed.search == plain.search
    expected = plain.config.training.model_copy(update={"patience": 7})
    assert changed.config.training == expected
    assert changed.config.method == "sequential"
    assert not (tmp_path / "stripes" / name / "search.json").exists()
    assert run_grid(a_grid(tmp_path, f"sequential {name}", seeds=2)).finished == 4


def test_a_variant_alone_starts_the_search_of_its_method(tmp_path: Path) -> None:
    summary = run_grid(a_grid(tmp_path, "sequential@patience=7", seeds=1))
    assert (summary.done, summary.failures) == (1, {})
    search = search_of(tmp_path)
    assert search.config.training.patience != 7
    assert not (tmp_path / "stripes" / "sequential" / "s0").exists()
    known = record(tmp_path, "sequential@patience=7", 0).search
    assert known is not None
    assert known.chosen == search.chosen


@pytest.mark.parametrize(
    ("text", "name", "changes"),
    [
        ("l2p", "l2p", ()),
        ("l2p@faithful", "l2p@faithful", ("faithful=true",)),
        ("os-prompt++@faithful=true", "os-prompt++@faithful", ("faithful=true",)),
        ("l2p@top_k=3@faithful", "l2p@faithful@top_k=3", ("faithful=true", "top_k=3")),
        ("residual-sodap@uw=false", "residual-sodap@uw=false", ("uw=false",)),
    ],
)
def test_names_of_variants(text: str, name: str, changes: tuple[str, ...]) -> None:
    entry = read_entry(text)
    assert (entry.name, entry.changes) == (name, changes)
    assert read_entry(name) == entry
    assert entry.variant == (name if changes else None)


def test_a_variant_sets_an_option_once() -> None:
    with pytest.raises(SodapError, match="twice"):
        read_entry("l2p@top_k=5@top_k=10")


def test_the_grid_faithful_has_every_method_with_that_option_in_pairs() -> None:
    recipe, table1 = read_grid("faithful"), read_grid("table1")
    having = [m for m in method_names() if "faithful" in find_method(m).Config.model_fields]
    pairs = {name for method in having for name in (method, f"{method}@faithful")}
    assert set(recipe.method_names()) == pairs
    assert len(recipe.method_names()) == len(pairs)
    assert recipe.settings == table1.settings, "so that runs of table1 can be used again"


def test_the_record_has_the_speed_of_a_run(tmp_path: Path) -> None:
    run_grid(a_grid(tmp_path, seeds=1, changes=[*QUICK, "weight_decay=0.01"]))
    trained, solved = record(tmp_path, "sequential", 0), record(tmp_path, "ridge", 0)
    rows, _ = read_log(tmp_path / "stripes" / "sequential" / "s0" / "log.jsonl")
    assert len(rows) == 2
    assert trained.throughput.train == rows[1].images_per_second, "the first epoch is a warm-up"
    assert solved.throughput.train is None
    for found in (trained, solved):
        tests = [stage.evaluation for stage in found.stages if stage.evaluation is not None]
        assert [each.images for each in tests] == [24, 24]
        seconds = sum(each.seconds for each in tests)
        assert found.throughput.inference == pytest.approx(48 / seconds)
        assert found.stages[0].peak_gpu_bytes is None


# ---------------------------------------------------------------------- searches


def test_a_search_depends_on_no_test_image_and_no_later_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(changed: bool) -> Stream:
        stream = make_stream(domains=3)
        if not changed:
            return stream
        domains = [
            replace(domain, test=make_split(30, 3, 200.0, 99 + number))
            for number, domain in enumerate(stream.domains)
        ]
        domains[2] = replace(domains[2], train=make_split(9, 3, 250.0, 5))
        return replace(stream, domains=tuple(domains))

    for place, changed in (("one", False), ("two", True)):
        monkeypatch.setitem(stream_registry._FACTORIES, "stripes", partial(stream, changed))
        task_module._cached.cache_clear()
        run_grid(a_grid(tmp_path / place, "sequential", seeds=1))
    first, second = (search_of(tmp_path / place) for place in ("one", "two"))
    assert first.candidates == second.candidates
    first_run, second_run = (record(tmp_path / place, "sequential", 0) for place in ("one", "two"))
    assert first_run.R != second_run.R


def test_without_a_search_the_defaults_are_taken(tmp_path: Path) -> None:
    watcher = Watcher()
    run_grid(a_grid(tmp_path, "sequential", seeds=1, search=False), watcher)
    assert watcher.done == ["stripes sequential seed 0"]
    assert record(tmp_path, "sequential", 0).config.training.weight_decay == 0.01


@pytest.mark.parametrize(
    ("before", "later", "finished"),
    [
        ("sequential", "ridge sequential", True),
        ("sequential", "sequential@patience=7", False),  # its search would be beside the runs
        ("sequential@patience=7", "sequential", True),
    ],
)
def test_no_search_beside_runs_that_had_none(
    tmp_path: Path, before: str, later: str, finished: bool
) -> None:
    run_grid(a_grid(tmp_path, before, seeds=1, search=False))
    if not finished:  # killed so early that it has no record yet
        record_path(tmp_path, before, 0).unlink()
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    watcher = Watcher()
    with pytest.raises(SodapError, match=r"s0 was run without a search .*choose another --out"):
        run_grid(a_grid(tmp_path, later, seeds=3), watcher)
    assert watcher.total == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files
    again = run_grid(a_grid(tmp_path, before, seeds=1, search=False))
    assert again.done + again.finished == 1, "the first command still works"


def test_a_lost_search_is_repeated(tmp_path: Path) -> None:
    run_grid(a_grid(tmp_path, "sequential", seeds=1))
    (tmp_path / "stripes" / "sequential" / "search.json").unlink()
    summary = run_grid(a_grid(tmp_path, "sequential", seeds=2))
    assert (summary.done, summary.finished, summary.failures) == (1, 1, {})
    with pytest.raises(SodapError, match=r"sequential was searched \(.* chosen\), and --no-se"):
        run_grid(a_grid(tmp_path, "sequential", seeds=1, search=False))


# ---------------------------------------------------------------------- failures


def test_a_failure_costs_its_run_and_is_tried_again(tmp_path: Path) -> None:
    Troubled.trouble = "bug in seed 0"
    watcher, grid = Watcher(), a_grid(tmp_path, "troubled", search=False)
    summary = run_grid(grid, watcher)
    trace = tmp_path / "stripes" / "troubled" / "s0.error.txt"
    assert summary.failures == {"stripes troubled seed 0": f"ValueError: bad luck (see {trace})"}
    assert summary.done == 1
    assert watcher.failed == ["stripes troubled seed 0"]
    assert "in begin_stage" in trace.read_text()

    Troubled.trouble = ""
    summary = run_grid(grid)
    assert (summary.done, summary.finished, summary.failures) == (1, 1, {})
    assert not trace.exists()


def test_a_candidate_whose_training_breaks_is_not_chosen(tmp_path: Path) -> None:
    Troubled.trouble = "decay 0.1 diverges"
    watcher = Watcher()
    summary = run_grid(a_grid(tmp_path, "troubled", seeds=1), watcher)
    assert (summary.done, summary.failures, len(watcher.done)) == (1, {}, 3)
    search = search_of(tmp_path, "troubled")
    assert [each.score is None for each in search.candidates] == [False, True]
    assert search.chosen == {"weight_decay": 0.0}


def test_a_candidate_that_failed_for_another_reason_is_repeated(tmp_path: Path) -> None:
    Troubled.trouble = "no memory for decay 0"
    summary = run_grid(a_grid(tmp_path, "troubled ridge", seeds=1))
    assert list(summary.failures) == ["stripes troubled search weight_decay=0.0"]
    assert (summary.done, summary.not_started) == (1, 1)  # ridge is done
    assert not (tmp_path / "stripes" / "troubled" / "search.json").exists()

    Troubled.trouble = ""
    summary = run_grid(a_grid(tmp_path, "troubled ridge", seeds=1))
    assert (summary.done, summary.finished, summary.failures) == (1, 1, {})


def test_an_interrupted_run_is_resumed(tmp_path: Path) -> None:
    class Stopper(RunCallback):
        def stage_done(self, stage: Stage, record: StageRecord) -> None:
            raise KeyboardInterrupt

    whole, halved = (a_grid(tmp_path / n, "sequential", 1, search=False) for n in ("one", "two"))
    run_grid(whole)
    folder = record_path(tmp_path / "two", "sequential", 0).parent
    with pytest.raises(KeyboardInterrupt):
        run(halved.config("stripes", Entry("sequential"), 0), folder, callback=Stopper())
    assert record(tmp_path / "two", "sequential", 0).status == "interrupted"
    assert run_grid(halved).done == 1
    first, second = (record(tmp_path / n, "sequential", 0).confusions for n in ("one", "two"))
    assert first == second


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    run_grid(a_grid(tmp_path, "sequential", 1, search=False))
    with pytest.raises(SodapError, match=r"another training\.lr \(0.001 instead of 0.5\)"):
        run_grid(a_grid(tmp_path, "sequential", 1, search=False, changes=[*QUICK, "lr=0.5"]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"changes": ["seed=3"]}, "give --seeds instead"),
        ({"changes": ["colour=blue"]}, "'colour' is no key"),
        ({"changes": ["weights=nowhere.pth"]}, "no weights file"),
        ({"changes": ["backbone=nothing"]}, "no backbone is called"),
        ({"methods": ["magic"]}, "no method is called 'magic'"),
        ({"methods": ["ridge", "ridge"]}, "each once"),
        ({"methods": ["l2p@faithful", "l2p@faithful=true"]}, "each once"),
        ({"methods": ["l2p@"]}, "not a method or a variant"),
        ({"methods": ["l2p@beauty"]}, "'beauty' is no key"),
        ({"methods": ["l2p@seed=3"]}, "give --seeds instead"),
        ({"streams": ["a/x", "b/x"]}, "same name"),
        ({"streams": []}, "one or more streams"),
        ({"seeds": [999_983]}, "searches use it"),
    ],
)
def test_mistakes_are_found_before_the_first_run(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SodapError, match=words):
        run_grid(replace(a_grid(tmp_path / "out"), **changes))
    assert not (tmp_path / "out").exists()


def test_table1_has_every_method() -> None:
    assert "table1" in grid_names()
    recipe = read_grid("table1")
    assert {"l2p", "ridge", "residual-sodap"} <= set(recipe.method_names())
    assert recipe.methods == "all"
    assert recipe.seeds == 5
    assert "lr" not in recipe.settings


def test_a_grid_file_of_a_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("methods: [ridge]\nseeds: 2\n")
    assert read_grid(str(file)).method_names() == ["ridge"]
    file.write_text("method: ridge\n")
    with pytest.raises(SodapError, match="'method': extra inputs"):
        read_grid(str(file))
    with pytest.raises(SodapError, match="no grid is called 'table9'; there are: faithful, table1"):
        read_grid("table9")


def test_a_stream_that_cannot_be_read_is_refused_before_runs_are_counted(tmp_path: Path) -> None:
    watcher = Watcher()
    with pytest.raises(SodapError, match="nowhere"):
        run_grid(replace(a_grid(tmp_path), streams=["nowhere"]), watcher)
    assert watcher.total == 0


# ---------------------------------------------------------------------- several processes


def when_idle(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[float]:
    """Act instead of sleeping, when the grid has nothing to do but to wait for other processes."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:  # the first time nothing happens
            act()

    monkeypatch.setattr(grid_run, "sleep", sleep)
    return waits


def test_two_processes_share_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another process is waited for, last of all."""
    folder = record_path(tmp_path, "ridge", 0).parent
    grid, other, watcher = a_grid(tmp_path, "ridge", 3), ExitStack(), Watcher()
    config = grid.config("stripes", Entry("ridge"), 0)
    theirs = run(config, tmp_path / "elsewhere", command=["another", "process"])
    other.enter_context(folder_lock(folder))
    write_json(folder / "config.json", config.described())

    def other_finishes() -> None:
        write_json(folder / "record.json", theirs.model_dump(mode="json"))
        other.close()

    waits = when_idle(monkeypatch, other_finishes)
    summary = run_grid(grid, watcher)
    assert watcher.done == [f"stripes ridge seed {seed}" for seed in (1, 2, 0)]
    assert (summary.done, summary.failures, len(waits)) == (3, {}, 2)
    assert record(tmp_path, "ridge", 0).command == ["another", "process"]


@pytest.mark.parametrize("succeeds", [True, False])
def test_one_process_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, succeeds: bool
) -> None:
    """The others use its result, or search themselves if it died."""
    watcher, other = Watcher(), ExitStack()
    run_grid(a_grid(tmp_path / "two", "sequential", 1))
    theirs = search_of(tmp_path / "two").model_copy(update={"chosen": {"weight_decay": 0.125}})
    home = tmp_path / "one" / "stripes" / "sequential"
    other.enter_context(folder_lock(home))

    def other_ends() -> None:
        if succeeds:
            write_json(home / "search.json", theirs.model_dump(mode="json"))
        other.close()

    when_idle(monkeypatch, other_ends)
    grid = a_grid(tmp_path / "one", "sequential ridge", 1)
    summary = run_grid(grid, watcher)
    assert (summary.done, summary.failures) == (2, {})
    assert watcher.done[0] == "stripes ridge seed 0"
    assert len(watcher.done) == (2 if succeeds else 4)
    chosen = record(tmp_path / "one", "sequential", 0).config.training.weight_decay
    assert (chosen == 0.125) == succeeds
    assert run_grid(grid).finished == 2


def test_a_folder_is_free_unless_a_process_has_locked_it(tmp_path: Path) -> None:
    assert grid_run.is_free(tmp_path)
    with folder_lock(tmp_path):
        assert not grid_run.is_free(tmp_path)
    (tmp_path / "file").touch()
    assert grid_run.is_free(tmp_path / "file" / "s0"), "the run itself will report the problem"


def test_older_search_files_are_read(tmp_path: Path) -> None:
    """They have an empty environment if every candidate broke, or none was kept."""
    grid = a_grid(tmp_path, "sequential", 1)
    run_grid(grid)
    path = tmp_path / "stripes" / "sequential" / "search.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"environment": {}}))
    assert run_grid(grid).finished == 1


def test_folds_have_runs_and_searches_of_their_own(tmp_path: Path) -> None:
    for domain in ("one", "two"):
        for label in ("cat", "dog"):
            for number in range(8):
                path = tmp_path / "pets" / domain / label / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((8, 8, 3), 9 * number, np.uint8)).save(path)
    out = tmp_path / "out"
    changes = [*QUICK, "epochs=1"]
    grid = Grid([str(tmp_path / "pets")], ["sequential"], range(1), out, changes, jobs=0, folds=2)
    summary = run_grid(grid)
    assert (summary.done, summary.failures) == (2, {})
    homes = [out / "pets" / f"fold-{number}-of-2" / "sequential" for number in (1, 2)]
    assert all((home / "search.json").is_file() for home in homes)
    records = [read_record(home / "s0" / "record.json") for home in homes]
    assert [each.config.fold for each in records] == ["1/2", "2/2"]
    assert [sum(d.counts.test) for each in records for d in each.stream.domains] == [8] * 4
    assert run_grid(grid).finished == 2
    with pytest.raises(SodapError, match="--folds"):
        replace(grid, changes=["fold=1/2"]).check()
    with pytest.raises(SodapError, match="without folds"):
        replace(grid, streams=["stripes"]).check()
