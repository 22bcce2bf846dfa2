from __future__ import annotations

import importlib
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import TINY, make_stream

import sodap
from sodap.errors import FolderBusyError, SodapError
from sodap.evaluation import accuracy, summary
from sodap.methods.sequential import Sequential
from sodap.runs import RunCallback, RunConfig, RunContext, RunRecord, load_config, run
from sodap.runs import checkpoint as checkpoint_module
from sodap.runs import run_log as run_log_module
from sodap.runs import writer as writer_module
from sodap.runs.environment import environment
from sodap.runs.evidence import read_evidence, read_steps
from sodap.runs.reading import read_log, read_record
from sodap.runs.record import Environment, EpochRow, StageRecord
from sodap.runs.runner import OtherProgramWarning, _Run
from sodap.runs.writer import Writer
from sodap.storage import read_json, save_state, write_bytes
from sodap.streams import Stage, Stream

QUICK = [*TINY, "epochs=2", "patience=2", "batch_size=16"]
GOLDEN = Path(__file__).parent / "golden"

Finished = tuple[Path, RunRecord]


def quick(recipe: str = "sequential", *changes: str) -> RunConfig:
    return load_config(recipe, [*QUICK, *changes])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of Residual SODAP."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    return folder, run(quick("default"), folder, stream=make_stream(), command=["sodap", "run"])


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of a linear head."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    return folder, run(quick(), folder, stream=make_stream())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def log_of(folder: Path) -> list[EpochRow]:
    rows, damaged = read_log(folder / "log.jsonl")
    assert damaged == 0
    return rows


def epochs_of(folder: Path) -> list[tuple[int, int]]:
    return [(row.stage, row.epoch) for row in log_of(folder)]


def test_the_folder_holds_everything(finished: Finished) -> None:
    folder, record = finished
    assert read_record(folder / "record.json") == record
    assert record.status == "finished"
    assert record.command == ["sodap", "run"]
    assert record.environment is not None
    assert record.environment.packages["torch"]
    assert RunConfig.model_validate(read_json(folder / "config.json")) == record.config
    assert epochs_of(folder) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    begun = record.stages[1].begun
    assert begun.drift is not None
    assert begun.pool is not None
    assert begun.drift.score > 0
    assert begun.pool.frozen == 60
    assert not (folder / "checkpoint").exists()
    assert sodap.load(folder / "model").stages_learned == 2


def test_r_follows_from_the_confusions(finished: Finished) -> None:
    _, record = finished
    R = [[accuracy(np.array(matrix)) for matrix in row] for row in record.confusions]
    assert record.R.accuracy == R
    assert record.metrics.accuracy is not None
    assert record.metrics.accuracy.model_dump() == summary(R)
    assert [np.sum(matrix) for matrix in record.confusions[0]] == [12, 12]


def test_one_stage_has_no_forgetting(tmp_path: Path) -> None:
    record = run(quick("ridge"), tmp_path / "run", stream=make_stream(domains=1))
    assert record.metrics.accuracy is not None
    assert record.metrics.accuracy.average_forgetting is None


def test_every_step_is_in_the_folder(finished: Finished) -> None:
    folder, record = finished
    traces = read_steps(folder, epochs_of(folder))
    assert list(traces) == [1, 2]
    assert [stage.steps for stage in record.stages] == [4, 4]  # 24 images, 16 at a time
    assert list(traces[1].weights) == []
    for row in log_of(folder):
        epoch = traces[row.stage].select(row.epoch)
        assert epoch.images.tolist() == [16, 8]
        assert set(epoch.losses) == set(row.losses)
        for name, values in epoch.losses.items():
            mean = np.average(values.double(), weights=epoch.images)
            assert mean == pytest.approx(row.losses[name], rel=1e-12)
        assert {name: float(values[-1]) for name, values in epoch.weights.items()} == row.weights
    assert sum(map(len, files(folder / "steps").values())) < 10_000


def test_steps_that_are_not_in_the_log_are_left_out(finished: Finished, tmp_path: Path) -> None:
    folder, epochs = finished[0], epochs_of(finished[0])
    assert read_steps(folder, epochs[:3])[2].epoch.tolist() == [1, 1]
    assert read_steps(folder, [*epochs, (2, 3)]) == {}, "and none is invented"
    assert read_steps(folder, [*epochs, (3, 1)]) == {}
    assert read_steps(tmp_path, epochs) == {}


def test_callbacks_are_called(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watcher(RunCallback):
        def started(self, stream: Stream, stages_done: int) -> None:
            seen.append(f"started {stages_done}")

        def batch_done(self, stage: Stage, epoch: int, step: int, steps: int) -> None:
            seen.append(f"batch {step}/{steps}")

        def epoch_done(self, stage: Stage, row: EpochRow) -> None:
            seen.append(f"epoch {row.epoch}")

        def stage_done(self, stage: Stage, record: StageRecord) -> None:
            seen.append(f"stage {record.stage}")

        def recorded(self, record: RunRecord) -> None:
            if record.status != "running":
                seen.append(record.status)

    run(
        quick("sequential", "epochs=1"),
        tmp_path / "run",
        stream=make_stream(domains=1),
        callback=Watcher(),
    )
    assert seen == ["started 0", "batch 1/2", "batch 2/2", "epoch 1", "stage 1", "finished"]


# ------------------------------------------------------------------ resuming


class PluggedOutError(Exception):
    pass


class Stopper(RunCallback):
    """Stops a run after so many epochs, as a failure in the middle would."""

    def __init__(self, epochs: int, error: type[BaseException] = PluggedOutError) -> None:
        self.left, self.error = epochs, error

    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error("pulled the plug")


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_an_interrupted_run_ends_with_the_same_result(
    finished: Finished, tmp_path: Path, epochs: int
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PluggedOutError):
        run(quick("default"), folder, stream=make_stream(), callback=Stopper(epochs))
    broken = read_record(folder / "record.json")
    assert broken.status == "failed"
    assert "pulled the plug" in (broken.note or "")
    assert len(log_of(folder)) == epochs

    record = run(quick("default"), folder, stream=make_stream(), resume=True)
    assert record.confusions == finished[1].confusions
    assert record.stages[1].begun == finished[1].stages[1].begun

    def losses(path: Path) -> list[Any]:
        return [(row.losses, row.weights, row.lr) for row in log_of(path)]

    assert losses(folder) == losses(finished[0])
    assert files(folder / "steps") == files(finished[0] / "steps"), "every step, to the bit"


@pytest.mark.filterwarnings("ignore::sodap.runs.runner.OtherProgramWarning")
def test_a_checkpoint_of_format_1_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(GOLDEN / "interrupted-1", folder)
    config = quick("sequential", "backbone=micro", "weights=pretrained", "image_size=null")
    whole = run(config, tmp_path / "whole", stream=make_stream())
    before = read_record(folder / "record.json")
    assert (before.status, len(before.stages)) == ("interrupted", 1)
    record = run(config, folder, stream=make_stream(), resume=True)
    assert record.status == "finished"
    assert record.confusions == whole.confusions
    assert epochs_of(folder) == epochs_of(tmp_path / "whole")
    assert len(record.earlier_environments) == 1


def in_environment(monkeypatch: pytest.MonkeyPatch, now: Environment) -> None:
    monkeypatch.setattr(sys.modules[run.__module__], "environment", lambda _: now)


def test_a_run_that_is_resumed_with_other_code_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        with pytest.raises(PluggedOutError):
            run(quick(), tmp_path, stream=make_stream(), callback=Stopper(1), resume=True)

    here = environment(Sequential)
    for _ in range(2):  # stopped twice with the old code, once in the middle of a stage
        stopped()
    for change in ({"code": "fixed"}, {"packages": {"torch": "99"}}):
        in_environment(monkeypatch, here.model_copy(update=change))
        with pytest.warns(OtherProgramWarning, match="other code or packages"):
            stopped()
    in_environment(monkeypatch, here)
    with pytest.warns(OtherProgramWarning):
        record = run(quick(), tmp_path, stream=make_stream(), resume=True)
    assert record.environment == here
    codes = [each.code for each in record.earlier_environments]
    assert codes == ["fixed", here.code], "all other programs, but not the present one"


def test_the_code_of_a_run_is_known_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = environment().code
    assert environment(Sequential).code == own
    assert environment(type("Typed", (), {"__module__": "__main__"})).code
    (tmp_path / "old_method.py").write_text("class Mine: ...")
    (tmp_path / "new_method.py").write_text("class Mine: ... # fixed")
    monkeypatch.syspath_prepend(tmp_path)
    old, new = (importlib.import_module(f"{age}_method").Mine for age in ("old", "new"))
    codes = [environment(each).code for each in (old, new)]
    assert len({own, *codes}) == 3
    (tmp_path / "old_method.py").write_text("class Mine: ... # edited while it runs")
    assert environment(old).code == codes[0]


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_epochs_after_the_last_checkpoint_are_logged_once(
    simple: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(checkpoint_module, "GAP", 1e9)  # the first epoch's is the only one
    with pytest.raises(PluggedOutError):
        run(quick(), folder, stream=make_stream(), callback=Stopper(epochs))
    assert len(read_steps(folder, epochs_of(folder))) == (epochs + 1) // 2
    run(quick(), folder, stream=make_stream(), resume=True)
    assert epochs_of(folder) == epochs_of(simple[0])
    assert files(folder / "steps") == files(simple[0] / "steps")


def test_files_that_a_killed_run_left_are_deleted(simple: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.json.abc.tmp").write_text("{")  # killed before it had begun
    with pytest.raises(PluggedOutError):
        run(quick(), folder, stream=make_stream(), callback=Stopper(2))
    (folder / "checkpoint" / ".state.json.def.tmp").touch()
    (folder / ".record.json.ghi.tmp").touch()
    assert run(quick(), folder, stream=make_stream(), resume=True).R == simple[1].R
    assert not list(folder.rglob("*.tmp"))
    (folder / "checkpoint").mkdir()  # killed between the last record and the end
    run(quick(), folder, stream=make_stream(), resume=True)
    assert not (folder / "checkpoint").exists()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PluggedOutError):
        run(quick(), folder, stream=make_stream(), callback=Stopper(1))
    file = next((folder / "checkpoint").glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(SodapError, match=r"damaged: its checksum.*; delete .*checkpoint"):
        run(quick(), folder, stream=make_stream(), resume=True)


def test_a_run_is_resumed_with_the_same_images_only(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PluggedOutError):
        run(quick(), folder, stream=make_stream(), callback=Stopper(3))
    with pytest.raises(SodapError, match="holds this run already; continue it with --resume"):
        run(quick(), folder, stream=make_stream())
    with pytest.raises(SodapError, match="begun with another stream"):
        run(quick(), folder, stream=make_stream(count=48), resume=True)


# ------------------------------------------------------------------ folders


def test_a_finished_run_is_not_run_again(simple: Finished) -> None:
    folder, record = simple
    assert run(quick(), folder, stream=make_stream(), resume=True) == record


def test_folders_that_are_taken(simple: Finished, tmp_path: Path) -> None:
    folder, _ = simple
    with pytest.raises(SodapError, match=f"holds this run, finished; see `sodap report {folder}`"):
        run(quick(), folder)
    with pytest.raises(SodapError, match=r"another training\.epochs \(2 instead of 3\); choose"):
        run(quick("sequential", "epochs=3"), folder)
    with pytest.raises(SodapError, match=r"another method \('sequential' instead of 'ridge'\);"):
        run(quick("ridge"), folder)
    with pytest.raises(SodapError, match=r"another seed \(0 instead of 9"):
        run(quick("sequential", "seed=9"), folder, resume=True)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SodapError, match="it is a file"):
        run(quick(), tmp_path / "file")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SodapError, match="is not empty and holds no run"):
        run(quick(), tmp_path)


def test_two_processes_do_not_learn_in_one_folder(tmp_path: Path) -> None:
    refused = []

    class Impatient(RunCallback):
        def epoch_done(self, stage: Stage, row: EpochRow) -> None:
            with pytest.raises(FolderBusyError) as error:
                run(quick(), tmp_path / "run", stream=make_stream(), resume=True)
            refused.append(error)

    record = run(quick(), tmp_path / "run", stream=make_stream(), callback=Impatient())
    assert len(refused) == 4
    assert run(quick(), tmp_path / "run", stream=make_stream(), resume=True) == record


def test_a_run_that_another_process_finished_meanwhile_is_not_run_again(
    simple: Finished, tmp_path: Path
) -> None:
    """After it was checked, and before it was locked."""
    folder = tmp_path / "run"
    waiting = _Run(quick(), folder, make_stream(), (), RunCallback(), RunContext())
    shutil.copytree(simple[0], folder)
    before = files(folder / "model")
    assert waiting.learn() == simple[1]
    assert files(folder / "model") == before


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    for change in ("stream=nothing", "backbone=nothing", "weights=none.safetensors"):
        with pytest.raises(SodapError):
            run(quick("default", "stream=digits-mini", change), tmp_path / "run")
        assert not (tmp_path / "run").exists(), change


# ------------------------------------------------------------------ disks that are full


class Obstacle(RunCallback):
    """Puts a file where the run needs a folder, as soon as the run has begun."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def started(self, stream: Stream, stages_done: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("in the way")


@pytest.mark.parametrize("lost", ["steps", "evidence", "stages/1", "checkpoint", "model"])
def test_files_that_could_not_be_written_fail_the_run_and_are_written_later(
    lost: str, simple: Finished, tmp_path: Path
) -> None:
    """A resumed run starts before the stage whose files are missing."""
    home = tmp_path / "run"
    obstacle = Obstacle(home / lost)
    with pytest.raises(SodapError, match=lost):
        run(quick(), home, stream=make_stream(), callback=obstacle)
    broken = read_record(home / "record.json")
    assert broken.status == "failed"
    assert lost in (broken.note or "")
    obstacle.path.unlink()
    record = run(quick(), home, stream=make_stream(), resume=True)
    assert (record.status, record.R) == ("finished", simple[1].R)
    assert len(read_evidence(home, 2)) == 2
    for folder in ("steps", "stages/1", "model"):
        assert files(home / folder) == files(simple[0] / folder)


def test_a_checkpoint_that_fails_does_not_hide_an_interruption(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    class Both(Obstacle):
        def epoch_done(self, stage: Stage, row: EpochRow) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(quick(), folder, stream=make_stream(), callback=Both(folder / "checkpoint"))
    assert read_record(folder / "record.json").status == "interrupted"


def failing(
    monkeypatch: pytest.MonkeyPatch, when: Callable[[Path, bytes], bool]
) -> threading.Event:
    """Let the record and the log fail to be written; the event says that one has failed."""
    failed = threading.Event()

    def maybe(path: Path, content: bytes) -> None:
        if when(path, content):
            failed.set()
            raise SodapError("the disk is full")
        write_bytes(path, content)

    monkeypatch.setattr(run_log_module, "write_bytes", maybe)
    return failed


def test_a_full_disk_is_noticed_within_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = failing(monkeypatch, lambda path, text: path.name == "log.jsonl" and b"epoch" in text)
    epochs: list[int] = []

    class Listener(RunCallback):
        def batch_done(self, stage: Stage, epoch: int, step: int, steps: int) -> None:
            assert epoch == 1 or failed.wait(60)

        def epoch_done(self, stage: Stage, row: EpochRow) -> None:
            epochs.append(row.epoch)

    long = quick("sequential", "epochs=50", "patience=50")
    with pytest.raises(SodapError, match="the disk is full"):
        run(long, tmp_path / "run", stream=make_stream(), callback=Listener())
    assert len(epochs) < 50


def test_an_end_that_is_not_on_disk_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[str] = []

    class Listener(RunCallback):
        def recorded(self, record: RunRecord) -> None:
            statuses.append(record.status)

    failing(monkeypatch, lambda _, content: b'"status": "finished"' in content)
    with pytest.raises(SodapError, match="the disk is full"):
        run(quick(), tmp_path / "run", stream=make_stream(), callback=Listener())
    assert set(statuses) == {"running"}
    monkeypatch.undo()
    record = run(quick(), tmp_path / "run", stream=make_stream(), resume=True)
    assert record.status == "finished"


def test_after_a_second_interruption_the_record_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, writers = tmp_path / "run", []

    def interrupted_again(writer: Writer) -> None:
        writers.append(writer)
        raise KeyboardInterrupt

    with monkeypatch.context() as impatient:
        impatient.setattr(Writer, "settle", interrupted_again)
        with pytest.raises(KeyboardInterrupt):
            run(quick(), folder, stream=make_stream(), callback=Stopper(1, KeyboardInterrupt))
    writers[0].wait()  # as the process does before it ends
    assert read_record(folder / "record.json").status == "interrupted"


def test_files_that_are_written_late_are_those_of_their_moment(
    simple: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on while the model of stage 1 waits for the disk."""
    home, later = tmp_path / "run", threading.Event()

    def late(folder: Path, name: str, tensors: Any, metadata: Any) -> None:
        if folder == home / "stages" / "1":
            assert later.wait(60)
        save_state(folder, name, tensors, metadata)

    class Second(RunCallback):
        def epoch_done(self, stage: Stage, row: EpochRow) -> None:
            if (row.stage, row.epoch) == (2, 1):
                assert not (home / "stages" / "1").exists()
                later.set()

    monkeypatch.setattr(writer_module, "save_state", late)
    run(quick(), home, stream=make_stream(), callback=Second())
    for folder in ("steps", "stages/1", "model"):
        assert files(home / folder) == files(simple[0] / folder)
    assert epochs_of(home) == epochs_of(simple[0])
