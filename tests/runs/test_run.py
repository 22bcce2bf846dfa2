from __future__ import annotations

import importlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import make_stream

import sodap
from sodap.errors import SodapError
from sodap.evaluation import accuracy, summary
from sodap.methods.sequential import Sequential
from sodap.runs import RunCallback, RunConfig, checkpoint, evidence, load_config, run, run_log
from sodap.runs.environment import environment
from sodap.runs.evidence import read_steps
from sodap.runs.run import OtherProgramWarning
from sodap.runs.writer import Writer
from sodap.storage import save_state, write_bytes
from sodap.streams import Stage, Stream

QUICK = ["epochs=2", "patience=2", "batch_size=16", "device=cpu"]


def quick(recipe: str = "default", *changes: str) -> RunConfig:
    return load_config(recipe, [*QUICK, *changes])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("runs") / "one"
    return folder, run(quick(), folder, stream=make_stream(), command=["sodap", "run"])


def test_the_folder_tells_everything(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, record = finished
    assert json.loads((folder / "record.json").read_text()) == record
    assert record["status"] == "finished"
    assert record["command"] == ["sodap", "run"]
    assert record["environment"]["packages"]["torch"]
    assert json.loads((folder / "config.json").read_text()) == record["config"]
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["epoch"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert record["stages"][1]["begun"]["drift"]["score"] > 0
    assert record["stages"][1]["begun"]["pool"]["frozen"] == 60
    assert not (folder / "checkpoint").exists()
    assert sodap.load(folder / "model").stages_learned == 2


def test_r_follows_from_the_confusions(finished: tuple[Path, dict[str, Any]]) -> None:
    _, record = finished
    R = [[accuracy(np.array(matrix)) for matrix in row] for row in record["confusions"]]
    assert record["R"]["accuracy"] == R
    assert record["metrics"]["accuracy"] == summary(R)
    assert [np.sum(matrix) for matrix in record["confusions"][0]] == [12, 12]


def test_one_stage_has_no_forgetting(tmp_path: Path) -> None:
    record = run(quick("sequential"), tmp_path / "run", stream=make_stream(domains=1))
    assert record["metrics"]["accuracy"]["average_forgetting"] is None


class PluggedOutError(Exception):
    pass


class Stopper(RunCallback):
    """Stops a run after so many epochs, as a failure in the middle would."""

    def __init__(self, epochs: int, error: type[BaseException] = PluggedOutError) -> None:
        self.left, self.error = epochs, error

    def epoch_done(self, stage: Stage, row: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error("pulled the plug")


@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
def test_an_interrupted_run_ends_with_the_same_result(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, epochs: int
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PluggedOutError):
        run(quick(), folder, stream=make_stream(), callback=Stopper(epochs))
    broken = json.loads((folder / "record.json").read_text())
    assert broken["status"] == "failed"
    assert len((folder / "log.jsonl").read_text().splitlines()) == epochs
    assert "pulled the plug" in broken["note"]

    record = run(quick(), folder, stream=make_stream(), resume=True)
    assert record["confusions"] == finished[1]["confusions"]
    assert record["stages"][1]["begun"] == finished[1]["stages"][1]["begun"]

    def losses(path: Path) -> list[Any]:
        lines = (path / "log.jsonl").read_text().splitlines()
        return [(row["losses"], row["weights"], row["lr"]) for row in map(json.loads, lines)]

    assert losses(folder) == losses(finished[0])
    assert files(folder / "steps") == files(finished[0] / "steps"), "every step, to the bit"


@pytest.mark.parametrize("key", ["code", "packages"])
def test_a_run_that_goes_on_with_other_code_says_so(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):  # stopped twice with the old code, once of that in the midst of a stage
        with pytest.raises(PluggedOutError):
            run(quick(), tmp_path, stream=make_stream(), callback=Stopper(1), resume=True)
    now = environment() | {key: "mended", "sodap": "99"}
    monkeypatch.setattr(sys.modules[run.__module__], "environment", lambda _: now)
    with (
        pytest.warns(OtherProgramWarning, match="in part with other code or packages"),
        pytest.raises(PluggedOutError),
    ):
        run(quick(), tmp_path, stream=make_stream(), callback=Stopper(1), resume=True)
    with pytest.warns(OtherProgramWarning):  # and it is not forgotten
        record = run(quick(), tmp_path, stream=make_stream(), resume=True)
    assert record["environment"] == now
    (earlier,) = record["earlier_environments"]
    assert earlier["sodap"] == sodap.__version__


@pytest.mark.filterwarnings("ignore::sodap.runs.run.OtherProgramWarning")
def test_every_program_of_a_run_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {name: environment() | {"code": name} for name in "ABC"}
    for name in "ABCA":
        now = programs[name]
        monkeypatch.setattr(sys.modules[run.__module__], "environment", lambda _, now=now: now)
        with pytest.raises(PluggedOutError):
            run(quick(), tmp_path, stream=make_stream(), callback=Stopper(1), resume=True)
    found = json.loads((tmp_path / "record.json").read_text())
    assert [each["code"] for each in found["earlier_environments"]] == ["B", "C"]


def test_the_code_of_a_run_is_known_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = environment()["code"]
    assert environment(Sequential)["code"] == own
    assert environment(type("Typed", (), {"__module__": "__main__"}))["code"]
    (tmp_path / "old_method.py").write_text("class Mine: ...")
    (tmp_path / "new_method.py").write_text("class Mine: ... # mended")
    monkeypatch.syspath_prepend(tmp_path)
    old, new = (importlib.import_module(f"{age}_method").Mine for age in ("old", "new"))
    codes = [environment(each)["code"] for each in (old, new)]
    assert len({own, *codes}) == 3
    (tmp_path / "old_method.py").write_text("class Mine: ... # edited while it runs")
    assert environment(old)["code"] == codes[0]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_every_step_is_in_the_folder(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, record = finished
    rows = log_of(folder)
    traces = read_steps(folder, rows)
    assert list(traces) == [1, 2]
    assert [stage["steps"] for stage in record["stages"]] == [4, 4]  # 24 images, 16 at a time
    assert list(traces[1].weights) == []
    for row in rows:
        epoch = traces[row["stage"]].select(row["epoch"])
        assert epoch.images.tolist() == [16, 8]
        assert set(epoch.losses) == set(row["losses"])
        for name, values in epoch.losses.items():
            mean = np.average(values.double(), weights=epoch.images)
            assert mean == pytest.approx(row["losses"][name], rel=1e-12)
        assert {name: float(values[-1]) for name, values in epoch.weights.items()} == row["weights"]
    assert sum(map(len, files(folder / "steps").values())) < 10_000


class NoMoreError(Exception):
    pass


@pytest.mark.parametrize("epoch", [1, 2, 3, 4])
def test_killed_before_its_steps_were_written(
    finished: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    epoch: int,
) -> None:
    """The checkpoint has them: nothing is lost, even of an epoch that ended its stage."""
    folder, calls = tmp_path / "run", 0
    keep = evidence.keep_steps

    def die(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == epoch:
            raise NoMoreError
        keep(*given)

    monkeypatch.setattr(checkpoint, "SHARE", 0)  # one after every epoch
    with monkeypatch.context() as for_now:
        for_now.setattr(run_log, "keep_steps", die)
        with pytest.raises(NoMoreError):
            run(quick(), folder, stream=make_stream())
    run(quick(), folder, stream=make_stream(), resume=True)
    assert files(folder / "steps") == files(finished[0] / "steps")


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_epochs_after_the_last_checkpoint_come_once(
    finished: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    epochs: int,
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)  # the first epoch's is the only one
    with pytest.raises(PluggedOutError):
        run(quick(), folder, stream=make_stream(), callback=Stopper(epochs))
    assert len(read_steps(folder, log_of(folder))) == (epochs + 1) // 2
    run(quick(), folder, stream=make_stream(), resume=True)
    assert files(folder / "steps") == files(finished[0] / "steps")


def test_steps_that_the_log_does_not_have_are_left_out(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    rows = log_of(finished[0])
    assert read_steps(finished[0], rows[:3])[2].epoch.tolist() == [1, 1]
    assert read_steps(finished[0], [*rows, {"stage": 2, "epoch": 3}]) == {}, "and none is invented"
    assert read_steps(finished[0], [*rows, {"stage": 3, "epoch": 1}]) == {}
    assert read_steps(tmp_path, rows) == {}


def test_a_finished_run_is_not_run_again(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, record = finished
    assert run(quick(), folder, stream=make_stream(), resume=True) == record


def test_folders_that_are_taken(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = finished
    with pytest.raises(SodapError, match=f"holds this run, finished; see `sodap report {folder}`"):
        run(quick(), folder)
    with pytest.raises(SodapError, match=r"another training\.epochs \(2 instead of 3\); choose"):
        run(quick("default", "epochs=3"), folder)
    with pytest.raises(SodapError, match=r"another options\.drift\.window \(\d+ instead of 7\);"):
        run(quick("default", "drift.window=7"), folder)
    with pytest.raises(SodapError, match=r"another seed \(0 instead of 9"):
        run(quick("default", "seed=9"), folder, resume=True)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SodapError, match="a file of that name"):
        run(quick(), tmp_path / "file")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SodapError, match="is not empty and holds no run"):
        run(quick(), tmp_path)


def test_a_last_checkpoint_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, save = tmp_path / "run", save_state

    def fail_at_last(home: Path, name: str, tensors: Any, facts: Any) -> None:
        if len(facts["stages"]) == 2:
            raise SodapError("cannot write any more")
        save(home, name, tensors, facts)

    monkeypatch.setattr(checkpoint, "save_state", fail_at_last)
    with pytest.raises(SodapError, match="cannot write"):
        run(quick(), folder, stream=make_stream())
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "failed"
    assert "cannot write" in record["note"]


def test_a_checkpoint_that_fails_hides_no_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def fail(*_: Any) -> None:
        time.sleep(0.5)  # the interruption comes first
        raise SodapError("cannot write anything")

    monkeypatch.setattr(checkpoint, "save_state", fail)
    with pytest.raises(KeyboardInterrupt):
        run(quick(), folder, stream=make_stream(), callback=Stopper(1, KeyboardInterrupt))
    assert json.loads((folder / "record.json").read_text())["status"] == "interrupted"


def test_files_tell_of_the_moment_that_they_were_handed_over_at(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late they are written."""
    let_go, logs, records, epochs = threading.Event(), [], [], []
    keep = evidence.keep_steps

    def late(path: Path, content: bytes) -> None:
        assert let_go.wait(60)
        if path.name == "log.jsonl":
            logs.append(len(content.splitlines()))
        else:
            records.append(json.loads(content))
        write_bytes(path, content)

    def seen(folder: Path, progress: Any) -> None:
        epochs.append((progress.stage, progress.epoch, len(progress.trace)))
        assert not progress.best, "a copy of the model would wait for the disk as well"
        keep(folder, progress)

    class Late(RunCallback):
        def epoch_done(self, stage: Stage, row: Any) -> None:
            if row["epoch"] == 2:
                let_go.set()

    monkeypatch.setattr(run_log, "write_bytes", late)
    monkeypatch.setattr(run_log, "keep_steps", seen)
    run(quick(), tmp_path / "run", stream=make_stream(), callback=Late())
    assert logs == [0, 1, 2, 2, 3, 4, 4, 4]
    # From one epoch to the next nothing is new in the record.
    under_way = [record.get("under_way", {}).get("stage") for record in records]
    assert under_way == [None, 1, None, 2, None, None]
    assert [len(record["stages"]) for record in records] == [0, 0, 1, 1, 2, 2]
    assert [len(record["confusions"]) for record in records] == [0, 0, 1, 1, 2, 2]
    assert [record["status"] for record in records] == ["running"] * 5 + ["finished"]
    assert epochs == [(1, 1, 2), (1, 2, 4), (2, 1, 2), (2, 2, 4)]
    assert files(tmp_path / "run" / "steps") == files(finished[0] / "steps")


def test_a_stage_counts_as_done_when_all_that_it_leaves_is_there(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed goes on after it, and would not look back for what is missing.

    And however late it is written, it is the model of that stage.
    """
    home = tmp_path / "run"
    second_epoch, done = threading.Event(), []

    def late(folder: Path, name: str, tensors: Any, facts: Any) -> None:
        if folder == home / "stages" / "1":
            assert second_epoch.wait(60), "training goes on meanwhile"
        save_state(folder, name, tensors, facts)

    def looked(folder: Path, name: str, tensors: Any, facts: Any) -> None:
        if "progress" not in facts:
            done.append(len(facts["stages"]))
            assert (home / "evidence" / f"stage-{done[-1]}.json").is_file()
            assert done[-1] == 2 or (home / "stages" / "1" / "model.json").is_file()
        save_state(folder, name, tensors, facts)

    class Second(RunCallback):
        def epoch_done(self, stage: Stage, row: Any) -> None:
            if (row["stage"], row["epoch"]) == (2, 1):
                second_epoch.set()

    monkeypatch.setattr(evidence, "save_state", late)
    monkeypatch.setattr(checkpoint, "save_state", looked)
    run(quick(), home, stream=make_stream(), callback=Second())
    assert done == [1, 2]
    assert files(home / "stages" / "1") == files(finished[0] / "stages" / "1")


def test_a_model_that_could_not_be_saved_is_told_and_saved_later(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "run"

    def fail(*_: Any) -> None:
        raise SodapError("cannot write it: the disk is full")

    with monkeypatch.context() as full:
        full.setattr(sodap.Learner, "save", fail)
        with pytest.raises(SodapError, match="the disk is full"):
            run(quick(), home, stream=make_stream())
    assert json.loads((home / "record.json").read_text())["status"] == "failed"
    record = run(quick(), home, stream=make_stream(), resume=True)
    assert (record["status"], record["R"]) == ("finished", finished[1]["R"])
    assert files(home / "model") == files(finished[0] / "model")


@pytest.mark.parametrize("lost", ["evidence", "stages/1"])
def test_what_a_stage_could_not_leave_is_made_up_for(
    lost: str,
    finished: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a disk was full, a run goes on before the stage whose files it could not write."""
    home = tmp_path / "run"

    def fail(folder: Path, *_: Any) -> None:
        if folder == home / lost:
            raise SodapError("cannot write it: the disk is full")

    with monkeypatch.context() as full:
        full.setattr(evidence, "save_state", fail)
        with pytest.raises(SodapError, match="the disk is full"):
            run(quick(), home, stream=make_stream())
    run(quick(), home, stream=make_stream(), resume=True)
    assert len(evidence.read_evidence(home, 2)) == 2
    assert files(home / "stages" / "1") == files(finished[0] / "stages" / "1")


class Listener(RunCallback):
    """Writes down what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.batches = 0

    def batch_done(self, *_: Any) -> None:
        self.batches += 1
        time.sleep(0.1)  # for what is written meanwhile

    def recorded(self, record: Any) -> None:
        self.told.append(record["status"])


def failing(monkeypatch: pytest.MonkeyPatch, when: Callable[[Path, bytes], bool]) -> None:

    def maybe(path: Path, content: bytes) -> None:
        if when(path, content):
            raise SodapError("the disk is full")
        write_bytes(path, content)

    monkeypatch.setattr(run_log, "write_bytes", maybe)


def test_a_full_disk_is_noticed_within_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, listener = tmp_path / "run", Listener()
    failing(monkeypatch, lambda path, content: path.name == "log.jsonl" and b"epoch" in content)
    with pytest.raises(SodapError, match="the disk is full"):
        run(quick(), folder, stream=make_stream(), callback=listener)
    assert listener.batches < 4, "of two epochs, two batches each"
    assert listener.told[-1] == "failed"


def test_nobody_hears_of_an_end_that_is_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener()
    failing(monkeypatch, lambda _, content: b'"status": "finished"' in content)
    with pytest.raises(SodapError, match="the disk is full"):
        run(quick("sequential"), tmp_path / "run", stream=make_stream(), callback=listener)
    assert set(listener.told) == {"running"}
    monkeypatch.undo()
    record = run(quick("sequential"), tmp_path / "run", stream=make_stream(), resume=True)
    assert record["status"] == "finished"


def test_a_second_interruption_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is impatient still finds how the run ended: that was handed over first."""
    folder = tmp_path / "run"

    def slowly(path: Path, content: bytes) -> None:
        time.sleep(0.1)
        write_bytes(path, content)

    def again(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_log, "write_bytes", slowly)
    monkeypatch.setattr(Writer, "settle", again)
    with pytest.raises(KeyboardInterrupt):
        run(quick(), folder, stream=make_stream(), callback=Stopper(1, KeyboardInterrupt))
    record, deadline = folder / "record.json", time.monotonic() + 30
    while not record.exists() or b'"status": "interrupted"' not in record.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_killed_run_left_is_cleared_away(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.json.abc.tmp").write_text("{")  # killed before it had begun
    with pytest.raises(PluggedOutError):
        run(quick(), folder, stream=make_stream(), callback=Stopper(2))
    (folder / "checkpoint" / ".state.json.def.tmp").touch()
    (folder / ".record.json.ghi.tmp").touch()
    assert run(quick(), folder, stream=make_stream(), resume=True)["R"] == finished[1]["R"]
    assert not list(folder.rglob("*.tmp"))
    (folder / "checkpoint").mkdir()  # interrupted between the last record and the end
    run(quick(), folder, stream=make_stream(), resume=True)
    assert not (folder / "checkpoint").exists()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PluggedOutError):
        run(quick("sequential"), folder, stream=make_stream(), callback=Stopper(2))
    file = next((folder / "checkpoint").glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(SodapError, match=r"damaged: its checksum.*; delete .*checkpoint to begin"):
        run(quick("sequential"), folder, stream=make_stream(), resume=True)


def test_two_processes_do_not_learn_in_one_folder(tmp_path: Path) -> None:
    refused = []

    class Impatient(RunCallback):
        def epoch_done(self, stage: Stage, row: Any) -> None:
            with pytest.raises(SodapError, match="another process is at work") as error:
                run(quick(), tmp_path / "run", stream=make_stream(), resume=True)
            refused.append(error)

    record = run(quick(), tmp_path / "run", stream=make_stream(), callback=Impatient())
    assert len(refused) == 4
    assert run(quick(), tmp_path / "run", stream=make_stream(), resume=True) == record


def test_whoever_waited_for_a_run_that_finished_leaves_it_alone(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked while the other was still learning, and comes in when that one is done."""
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    before = files(folder / "model")
    running = sys.modules["sodap.runs.run"]  # the package has a function of that name
    monkeypatch.setattr(running, "check_folder", lambda *_, **__: None)
    assert run(quick(), folder, stream=make_stream(), resume=True) == finished[1]
    assert files(folder / "model") == before


def test_a_run_goes_on_with_the_same_images_only(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PluggedOutError):
        run(quick("sequential"), folder, stream=make_stream(), callback=Stopper(3))
    with pytest.raises(SodapError, match="holds this run already; go on with --resume"):
        run(quick("sequential"), folder, stream=make_stream())
    with pytest.raises(SodapError, match="begun with another stream"):
        run(quick("sequential"), folder, stream=make_stream(count=48), resume=True)


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    for change in ("stream=nothing", "backbone=nothing", "weights=none.safetensors"):
        with pytest.raises(SodapError):
            run(quick("default", "stream=digits-mini", change), tmp_path / "run")
        assert not (tmp_path / "run").exists(), change


def test_an_observer_sees_it_all(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watcher(RunCallback):
        def started(self, stream: Stream, stages_done: int) -> None:
            seen.append(f"started {stages_done}")

        def batch_done(self, stage: Stage, epoch: int, step: int, steps: int) -> None:
            seen.append(f"batch {step}/{steps}")

        def epoch_done(self, stage: Stage, row: Any) -> None:
            seen.append(f"epoch {row['epoch']}")

        def stage_done(self, stage: Stage, record: Any) -> None:
            seen.append(f"stage {stage.number}")

    run(
        quick("sequential", "epochs=1"),
        tmp_path / "run",
        stream=make_stream(domains=1),
        callback=Watcher(),
    )
    assert seen == ["started 0", "batch 1/2", "batch 2/2", "epoch 1", "stage 1"]
