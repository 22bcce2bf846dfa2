"""The grid's bookkeeping, in this process; real workers are in test_workers and the CLI's tests."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.conftest import make_split, make_stream

import sodap.grids.grid as grid_module
import sodap.grids.task as task_module
import sodap.streams.registry as stream_registry
from sodap.errors import SodapError, TrainingBrokeError
from sodap.grids import Grid, GridCallback, Task, grid_names, read_grid
from sodap.grids.variants import Entry, read_entry
from sodap.grids.workers import TaskResult, _attempt
from sodap.methods import find_method, method_names
from sodap.methods.sequential import Sequential
from sodap.runs import RunCallback, run
from sodap.storage import folder_lock, write_json
from sodap.streams import Stage, Stream

QUICK = ["epochs=1", "batch_size=16", "device=cpu"]


def in_this_process(
    tasks: deque[Task], work: Callable[[Task], Any], jobs: int
) -> Generator[TaskResult[Task]]:
    while tasks:
        task = tasks.popleft()
        yield TaskResult(task, *_attempt(work, task))


class Watcher(GridCallback):
    def __init__(self) -> None:
        self.total = 0
        self.done: list[str] = []
        self.failed: list[str] = []

    def planned(self, tasks: int, finished: int) -> None:
        self.total = tasks

    def search_goes_on(self, setting: Mapping[str, Any]) -> None:
        self.total += 1

    def task_done(self, task: Task, result: Mapping[str, Any]) -> None:
        self.done.append(task.label)

    def task_failed(self, task: Task, error: str) -> None:
        self.failed.append(task.label)


@pytest.fixture(autouse=True)
def quick_searches_of_stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "work_off", in_this_process)
    monkeypatch.setattr(Sequential, "candidates", ({"lr": 1e-3}, {"lr": 1e-2}))
    monkeypatch.setattr(grid_module, "BEYOND", 0)
    monkeypatch.setitem(stream_registry._FACTORIES, "stripes", lambda: make_stream(domains=3))
    task_module._kept.cache_clear()


def a_grid(out: Path, methods: str = "ridge sequential", seeds: int = 2, **more: Any) -> Grid:
    changes = more.pop("changes", QUICK)
    return Grid(["stripes"], methods.split(), range(seeds), out, changes, **more)


def record(out: Path, method: str, seed: int) -> dict[str, Any]:
    path = out / "stripes" / method / f"s{seed}" / "record.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_a_grid_searches_then_runs_then_has_nothing_to_do(tmp_path: Path) -> None:
    watcher = Watcher()
    outcome = a_grid(tmp_path, command=["sodap", "bench"]).run(watcher)
    assert (outcome.done, outcome.finished, outcome.failures) == (4, 0, {})
    assert watcher.total == len(watcher.done) == 6
    assert [label.split(" search")[0] for label in watcher.done[:2]] == ["stripes sequential"] * 2

    search = json.loads((tmp_path / "stripes" / "sequential" / "search.json").read_text())
    scores = [each["score"] for each in search["candidates"]]
    assert search["chosen"] == search["candidates"][scores.index(max(scores))]["setting"]
    assert not (tmp_path / "stripes" / "sequential" / "search").exists()
    assert not (tmp_path / "stripes" / "ridge" / "search.json").exists()

    found = record(tmp_path, "sequential", 1)
    assert found["status"] == "finished"
    assert found["config"]["training"]["lr"] == search["chosen"]["lr"]
    assert found["config"]["seed"] == 1
    assert found["search"]["candidates"] == search["candidates"]
    assert found["jobs"] == 1
    assert found["command"] == ["sodap", "bench"]
    assert record(tmp_path, "ridge", 0)["search"] is None
    assert len(found["R"]["accuracy"]) == 3

    again = Watcher()
    outcome = a_grid(tmp_path).run(again)
    assert (outcome.done, outcome.finished, again.total) == (0, 4, 0)
    more = Watcher()
    outcome = a_grid(tmp_path, seeds=3).run(more)
    assert (outcome.done, outcome.finished) == (2, 4)
    assert sorted(more.done) == ["stripes ridge seed 2", "stripes sequential seed 2"]


def test_a_search_goes_on_beyond_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that grow with the rate lead on to the next rate, and no further than twice."""
    monkeypatch.setattr(grid_module, "BEYOND", 2)
    monkeypatch.setattr(task_module, "perform", lambda task: pretended(task))
    rates: list[float] = []

    def pretended(task: Task) -> dict[str, Any]:
        if task.setting is None:
            return {"seconds": 0.0, "metrics": {}}
        rates.append(task.config.training.lr)
        return {"seconds": 0.0, "score": task.config.training.lr, "environment": {}}

    watcher = Watcher()
    outcome = a_grid(tmp_path, "sequential", seeds=1).run(watcher)
    assert rates == [1e-3, 1e-2, 3e-2, 1e-1]
    assert (outcome.done, watcher.total) == (1, len(watcher.done)) == (1, 5)
    search = json.loads((tmp_path / "stripes" / "sequential" / "search.json").read_text())
    assert search["chosen"] == {"lr": 1e-1}
    assert [each["setting"]["lr"] for each in search["candidates"]] == rates


def test_images_are_decoded_once_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    for number in range(40):  # two domains, two classes, ten images each; no two alike
        place = tmp_path / "own" / f"d{number % 2}" / f"c{number // 2 % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    heard: list[tuple[int, int] | str] = []

    class Listener(GridCallback):
        def images_decoded(self, done: int, total: int) -> None:
            heard.append((done, total))

        def task_done(self, task: Task, result: Mapping[str, Any]) -> None:
            heard.append(task.label)

    grid = Grid([str(tmp_path / "own")], ["ridge"], range(2), tmp_path / "out", QUICK)
    outcome = grid.run(Listener())
    assert (outcome.done, outcome.failures) == (2, {})
    assert heard[-3:] == [(20, 20), "own ridge seed 0", "own ridge seed 1"]
    assert heard.count((20, 20)) == 2  # once a domain


# ---------------------------------------------------------------------- variants


def test_a_variant_takes_its_methods_search_and_a_name_of_its_own(tmp_path: Path) -> None:
    a_grid(tmp_path, "sequential", seeds=2).run()
    watcher = Watcher()
    outcome = a_grid(tmp_path, "sequential sequential@weight_decay=0.5", seeds=2).run(watcher)
    assert (outcome.done, outcome.finished) == (2, 2)
    name = "sequential@weight_decay=0.5"
    assert watcher.done == [f"stripes {name} seed {seed}" for seed in range(2)]
    plain, changed = (record(tmp_path, each, 1) for each in ("sequential", name))
    assert plain["variant"] is None
    assert changed["variant"] == name
    assert changed["search"] == plain["search"]
    expected = {**plain["config"]["training"], "weight_decay": 0.5}
    assert changed["config"]["training"] == expected
    assert changed["config"]["method"] == "sequential"
    assert not (tmp_path / "stripes" / name / "search.json").exists()
    assert a_grid(tmp_path, f"sequential {name}", seeds=2).run().finished == 4


def test_a_variant_alone_brings_about_the_search_of_its_method(tmp_path: Path) -> None:
    outcome = a_grid(tmp_path, "sequential@patience=7", seeds=1).run()
    assert (outcome.done, outcome.failures) == (1, {})
    home = tmp_path / "stripes"
    search = json.loads((home / "sequential" / "search.json").read_text())
    assert search["config"]["training"]["patience"] != 7
    assert not (home / "sequential" / "s0").exists()
    assert record(tmp_path, "sequential@patience=7", 0)["search"]["chosen"] == search["chosen"]


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


def test_faithful_is_every_method_that_has_it_in_pairs() -> None:
    recipe, table1 = read_grid("faithful"), read_grid("table1")
    having = [m for m in method_names() if "faithful" in find_method(m).Config.model_fields]
    pairs = {name for method in having for name in (method, f"{method}@faithful")}
    assert set(recipe.method_names()) == pairs
    assert len(recipe.method_names()) == len(pairs)
    assert recipe.settings == table1.settings, "else no run of table1 could be used again"


def test_the_speed_of_a_run_is_in_its_record(tmp_path: Path) -> None:
    a_grid(tmp_path, seeds=1, changes=[*QUICK, "lr=0.01"]).run()
    trained, solved = record(tmp_path, "sequential", 0), record(tmp_path, "ridge", 0)
    rows = (tmp_path / "stripes/sequential/s0/log.jsonl").read_text().splitlines()
    speeds = [json.loads(row)["images_per_second"] for row in rows]
    assert len(speeds) == 3
    assert trained["throughput"]["train"] == pytest.approx(sum(speeds[1:]) / 2)
    assert solved["throughput"]["train"] is None
    for found in (trained, solved):
        looks = [stage["evaluation"] for stage in found["stages"]]
        assert [look["images"] for look in looks] == [36, 36, 36]
        seconds = sum(look["seconds"] for look in looks)
        assert found["throughput"]["inference"] == pytest.approx(108 / seconds)
        assert found["stages"][0]["peak_gpu_bytes"] is None


def test_no_test_image_and_no_later_domain_has_a_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> Stream:
        stream = make_stream(domains=3)
        domains = [
            replace(domain, test=make_split(30, 3, 200.0, 99 + number))
            for number, domain in enumerate(stream.domains)
        ]
        domains[2] = replace(domains[2], train=make_split(9, 3, 250.0, 5))
        return replace(stream, domains=tuple(domains))

    searches = []
    for place in ("one", "two"):
        a_grid(tmp_path / place, "sequential", seeds=1).run()
        path = tmp_path / place / "stripes" / "sequential" / "search.json"
        searches.append(json.loads(path.read_text())["candidates"])
        monkeypatch.setitem(stream_registry._FACTORIES, "stripes", other)
        task_module._kept.cache_clear()
    assert searches[0] == searches[1]
    first, second = (record(tmp_path / place, "sequential", 0) for place in ("one", "two"))
    assert first["R"] != second["R"]


def test_without_a_search_the_defaults_are_taken(tmp_path: Path) -> None:
    watcher = Watcher()
    a_grid(tmp_path, "sequential", seeds=1, search=False).run(watcher)
    assert watcher.done == ["stripes sequential seed 0"]
    assert record(tmp_path, "sequential", 0)["config"]["training"]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("before", "later"),
    [
        ("sequential", "ridge sequential"),
        ("sequential", "sequential@patience=7"),  # its search would lie beside the runs
        ("sequential@patience=7", "sequential"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_no_search_beside_runs_that_had_none(
    tmp_path: Path, before: str, later: str, finished: bool
) -> None:
    a_grid(tmp_path, before, seeds=1, search=False).run()
    if not finished:  # killed so early that it has no record yet
        (tmp_path / "stripes" / before / "s0" / "record.json").unlink()
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    watcher = Watcher()
    with pytest.raises(SodapError, match=r"s0 was run without a search .*choose another --out"):
        a_grid(tmp_path, later, seeds=3).run(watcher)
    assert watcher.total == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files
    again = a_grid(tmp_path, before, seeds=1, search=False).run()
    assert again.done + again.finished == 1, "the first command is none the worse"


def test_a_search_that_was_lost_is_made_again(tmp_path: Path) -> None:
    a_grid(tmp_path, "sequential", seeds=1).run()
    (tmp_path / "stripes" / "sequential" / "search.json").unlink()
    outcome = a_grid(tmp_path, "sequential", seeds=2).run()
    assert (outcome.done, outcome.finished, outcome.failures) == (1, 1, {})


def test_defaults_need_another_folder_than_what_was_searched(tmp_path: Path) -> None:
    a_grid(tmp_path, "sequential", seeds=1).run()
    with pytest.raises(SodapError, match=r"sequential was searched \(lr=.* chosen\), and --no-se"):
        a_grid(tmp_path, "sequential", seeds=1, search=False).run()


def test_a_failure_costs_its_run_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(config: Any, folder: Path, **more: Any) -> dict[str, Any]:
        if config.method == "ridge" and config.seed == 0:
            raise ValueError("bad luck")
        return run(config, folder, **more)

    monkeypatch.setattr(task_module, "run", faulty)
    watcher = Watcher()
    outcome = a_grid(tmp_path, "ridge").run(watcher)
    trace = tmp_path / "stripes" / "ridge" / "s0.error.txt"
    assert outcome.failures == {"stripes ridge seed 0": f"ValueError: bad luck (see {trace})"}
    assert outcome.done == 1
    assert watcher.failed == ["stripes ridge seed 0"]
    assert "in faulty" in trace.read_text()

    monkeypatch.setattr(task_module, "run", run)
    outcome = a_grid(tmp_path, "ridge").run()
    assert (outcome.done, outcome.finished, outcome.failures) == (1, 1, {})
    assert not trace.exists()


def broken(at: float, error: Exception) -> Callable[..., dict[str, Any]]:
    """`run`, but for candidates with a learning rate of `at`."""

    def partly(config: Any, folder: Path, **more: Any) -> dict[str, Any]:
        if config.training.lr == at and folder.parent.name == "search":
            raise error
        return run(config, folder, **more)

    return partly


def test_a_candidate_that_breaks_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverged = TrainingBrokeError("ce is not finite")
    monkeypatch.setattr(task_module, "run", broken(1e-2, diverged))
    outcome = a_grid(tmp_path, "sequential", seeds=1).run()
    assert (outcome.done, outcome.failures) == (1, {})
    search = json.loads((tmp_path / "stripes" / "sequential" / "search.json").read_text())
    assert search["candidates"][1]["score"] is None
    assert search["chosen"] == {"lr": 1e-3}


def test_a_candidate_that_met_an_accident_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "run", broken(1e-3, MemoryError("too much")))
    outcome = a_grid(tmp_path, seeds=1).run()
    assert list(outcome.failures) == ["stripes sequential search lr=0.001"]
    assert (outcome.done, outcome.waiting) == (1, 1)  # ridge is none the worse
    assert not (tmp_path / "stripes" / "sequential" / "search.json").exists()

    monkeypatch.setattr(task_module, "run", run)
    outcome = a_grid(tmp_path, seeds=1).run()
    assert (outcome.done, outcome.finished, outcome.failures) == (1, 1, {})


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    class Stopper(RunCallback):
        def stage_done(self, stage: Stage, record: Mapping[str, Any]) -> None:
            if stage.number == 2:
                raise KeyboardInterrupt

    whole, halved = (a_grid(tmp_path / n, "sequential", 1, search=False) for n in ("one", "two"))
    whole.run()
    folder = tmp_path / "two" / "stripes" / "sequential" / "s0"
    with pytest.raises(KeyboardInterrupt):
        run(halved.config("stripes", Entry("sequential"), 0), folder, callback=Stopper())
    assert record(tmp_path / "two", "sequential", 0)["status"] == "interrupted"
    assert halved.run().done == 1
    confusions = [record(tmp_path / n, "sequential", 0)["confusions"] for n in ("one", "two")]
    assert confusions[0] == confusions[1]


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    a_grid(tmp_path, "sequential", 1, search=False).run()
    with pytest.raises(SodapError, match=r"another training\.lr \(0.001 instead of 0.5\)"):
        a_grid(tmp_path, "sequential", 1, search=False, changes=[*QUICK, "lr=0.5"]).run()


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
        ({"methods": ["l2p@"]}, "no variant of one"),
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
        replace(a_grid(tmp_path / "out"), **changes).run()
    assert not (tmp_path / "out").exists()


def test_table1_is_every_method() -> None:
    assert "table1" in grid_names()
    recipe = read_grid("table1")
    assert recipe.method_names() == method_names()
    assert recipe.seeds == 5
    assert "lr" not in recipe.settings


def test_a_grid_of_ones_own(tmp_path: Path) -> None:
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
        replace(a_grid(tmp_path), streams=["nowhere"]).run(watcher)
    assert watcher.total == 0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (grid_module, task_module):
        monkeypatch.setattr(module, "PAUSE_S", 0.02)


@pytest.mark.usefixtures("hasty")
def test_two_processes_share_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other one is at is done last, and found to be done."""
    order: list[int] = []

    def noted(config: Any, folder: Path, **more: Any) -> dict[str, Any]:
        order.append(config.seed)
        return run(config, folder, **more)

    monkeypatch.setattr(task_module, "run", noted)
    folder = tmp_path / "stripes" / "ridge" / "s0"
    grid, other = a_grid(tmp_path, "ridge", 3), ExitStack()
    config = grid.config("stripes", Entry("ridge"), 0)
    kept = run(config, tmp_path / "elsewhere")
    other.enter_context(folder_lock(folder))
    write_json(folder / "config.json", config.described())

    def finishes() -> None:
        write_json(folder / "record.json", kept)
        other.close()

    later = threading.Timer(2.0, finishes)
    later.start()
    outcome = grid.run()
    later.join()
    assert order == [0, 1, 2, 0]
    assert (outcome.done, outcome.failures) == (3, {})
    assert record(tmp_path, "ridge", 0)["environment"] == kept["environment"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("ends", [True, False])
def test_a_search_is_made_by_one_process(tmp_path: Path, ends: bool) -> None:
    """The other ones take what it found, or begin anew if it died."""
    grid, other, watcher = a_grid(tmp_path / "one", "sequential ridge", 1), ExitStack(), Watcher()
    home = tmp_path / "one" / "stripes" / "sequential"
    a_grid(tmp_path / "two", "sequential", 1).run()
    search = json.loads((tmp_path / "two" / "stripes" / "sequential" / "search.json").read_text())
    search["chosen"] = {"lr": 0.125}  # as another computer might have
    other.enter_context(folder_lock(home))

    def finishes() -> None:
        if ends:
            write_json(home / "search.json", search)
        other.close()

    later = threading.Timer(2.0, finishes)
    later.start()
    outcome = grid.run(watcher)
    later.join()
    assert (outcome.done, outcome.failures) == (2, {})
    assert watcher.done[0] == "stripes ridge seed 0"
    assert len(watcher.done) == (2 if ends else 4)
    assert (record(tmp_path / "one", "sequential", 0)["config"]["training"]["lr"] == 0.125) == ends
    assert a_grid(tmp_path / "one", "sequential ridge", 1).run().finished == 2


def test_a_folder_is_free_unless_a_process_is_at_work_in_it(tmp_path: Path) -> None:
    assert task_module.is_free(tmp_path)
    with folder_lock(tmp_path):
        assert not task_module.is_free(tmp_path)
    (tmp_path / "file").touch()
    assert task_module.is_free(tmp_path / "file" / "s0"), "nobody to wait for: the run will tell"
