"""`sodap watch`: during a run, after it, and on a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from tests.cli.conftest import SODAP, Call
from tests.conftest import TINY, make_stream

from sodap.cli.time_left import time_left
from sodap.cli.watch import (
    BARS,
    Snapshot,
    binned,
    frame,
    sparkline,
    take_snapshot,
    watch_run,
)
from sodap.errors import SodapError
from sodap.evaluation import MEANINGS
from sodap.learning import Training
from sodap.runs import RunCallback, RunConfig, RunRecord, load_config, run
from sodap.runs.process import this_process
from sodap.runs.reading import read_log, read_record
from sodap.runs.record import (
    DomainInfo,
    EpochRow,
    MetricsByMeasure,
    ResultMatrices,
    SplitCounts,
    StageRecord,
    StreamInfo,
)
from sodap.runs.writer import Writer
from sodap.storage import load_state, write_json
from sodap.streams import Stage

QUICK = [*TINY, "epochs=2", "patience=2", "batch_size=16", "evidence=false"]


def shown(view: RenderableType, width: int = 300) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(view)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


class Onlooker(RunCallback):
    """Takes snapshots of the run's folder, as another process would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.frames: list[str] = []

    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        self.frames.append(shown(frame(take_snapshot(self.folder))))

    def stage_done(self, stage: Stage, record: StageRecord) -> None:
        self.frames.append(shown(frame(take_snapshot(self.folder))))


class PromptWriter(Writer):
    """Writes in the foreground, so that callbacks find the files written."""

    def write(self, *steps: Callable[[], None]) -> Future[None]:
        job = super().write(*steps)
        wait([job])
        return job


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("watched") / "run"
    onlooker = Onlooker(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[run.__module__], "Writer", PromptWriter)
        run(load_config("default", QUICK), folder, stream=make_stream(), callback=onlooker)
    return folder, onlooker.frames


def test_every_epoch_is_shown(watched: tuple[Path, list[str]]) -> None:
    folder, frames = watched
    rows, _ = read_log(folder / "log.jsonl")
    epochs = [frames[i] for i in (0, 1, 3, 4)]  # a stage ends after every second epoch
    for row, text in zip(rows, epochs, strict=True):
        assert f"(stage {row.stage}, epoch {row.epoch})" in text
        for name, loss in row.losses.items():
            assert re.search(rf"{name} {re.escape(f'{loss:.3g}')}( ×[\d.]+)? [{BARS}]+  ", text)
        assert f"throughput  {row.images_per_second:.0f} images/s" in text
        assert "running" in text
    assert "accuracy after" not in frames[0]
    assert re.search(r"running, (at most .* left|about to end)", frames[0])
    assert re.search(r"running, (about .* left|about to end)", frames[3])


def test_the_drift_of_the_present_stage_is_shown(watched: tuple[Path, list[str]]) -> None:
    folder, frames = watched
    record = read_record(folder / "record.json")
    begun = record.stages[1].begun
    assert begun.drift is not None
    assert begun.pool is not None
    line = next(each for each in frames[3].splitlines() if "domain 1" in each)
    assert line.startswith("…")
    assert "too few batches" in line, "10 are needed, and the domain before has fewer"
    assert "hardly measured" in frames[3]
    drift = begun.drift.model_copy(update={"past_batches": 10})
    second = record.stages[1].model_copy(
        update={"begun": begun.model_copy(update={"drift": drift})}
    )
    changed = record.model_copy(update={"stages": [record.stages[0], second]})
    known = shown(frame(Snapshot(folder, changed)))
    assert f"{drift.score:.2f}" in known
    assert "too few" not in known
    assert f"60 + {begun.pool.active}, grew by {drift.added}" in line
    before = next(each for each in frames[2].splitlines() if "domain 1" in each)
    assert "grew" not in before, "it had not met that domain yet"


def test_a_finished_run_is_shown_with_its_result(watched: tuple[Path, list[str]]) -> None:
    folder, _ = watched
    record = read_record(folder / "record.json")
    text = shown(frame(take_snapshot(folder)))
    assert text.startswith("residual-sodap learns stripes, seed 0, on test_vit")
    for value in (value for row in record.R.accuracy for value in row):
        assert f"{value:.3f}" in text
    assert record.metrics.accuracy is not None
    verdict = record.verdict
    assert verdict is not None
    assert f"finished: final average {verdict.final:.3f}" in text
    assert f"always answering '{verdict.answer}' gives {verdict.constant:.3f}" in text
    assert f"AvgACC {record.metrics.accuracy.average_accuracy:.3f}: {MEANINGS['AvgACC']}" in text
    assert all(sentence in text for sentence in verdict.warnings)
    assert record.under_way is None


def test_no_line_breaks_within_a_loss_on_a_narrow_terminal(watched: tuple[Path, list[str]]) -> None:
    now = take_snapshot(watched[0])
    row = now.rows[-1]
    text = shown(frame(now), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert len(row.weights) > 1
    for name, loss in row.losses.items():
        weight = f" ×{row.weights[name]:.2f}" if name in row.weights else ""
        curve = sparkline(binned(now.losses[name]))
        assert f"{name} {loss:.3g}{weight} {curve}" in text
    assert f"(stage {row.stage}, epoch {row.epoch})" in text


def test_a_matrix_in_colour(watched: tuple[Path, list[str]]) -> None:
    console = Console(file=io.StringIO(), width=100, color_system="truecolor", force_terminal=True)
    console.print(frame(take_snapshot(watched[0])))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert len(re.findall(r"48;2;\d+;\d+;\d+m", text)) == 3, "the learned half of a 2 x 2 matrix"


@pytest.mark.parametrize(
    ("status", "note"), [("failed", "ValueError: bad"), ("interrupted", "stopped by the user")]
)
def test_how_a_run_ended_is_shown(
    watched: tuple[Path, list[str]], tmp_path: Path, status: str, note: str
) -> None:
    record = json.loads((watched[0] / "record.json").read_text())
    write_json(tmp_path / "config.json", record["config"])
    write_json(tmp_path / "record.json", record | {"status": status, "note": note})
    now = take_snapshot(tmp_path)
    assert now.ended
    assert f"{status}: {note}; continue with the same command and --resume" in shown(frame(now))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    watch_run(console, tmp_path, once=False)  # ends by itself
    assert status in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_long_silence_is_shown(watched: tuple[Path, list[str]], tmp_path: Path) -> None:
    record = json.loads((watched[0] / "record.json").read_text()) | {"status": "running"}
    write_json(tmp_path / "config.json", record["config"])
    write_json(tmp_path / "record.json", record)
    assert "killed" not in shown(frame(take_snapshot(tmp_path)))
    past = time.time() - 7200
    os.utime(tmp_path / "record.json", (past, past))
    assert "silent for 2.0 h: it may have been killed" in shown(frame(take_snapshot(tmp_path)))
    (tmp_path / "log.jsonl").touch()  # within a stage, only the log is written
    assert "killed" not in shown(frame(take_snapshot(tmp_path)))
    for damaged in ("{", "[1, 2]"):
        (tmp_path / "log.jsonl").write_text(damaged)
        with pytest.raises(SodapError, match="is damaged: 1 line"):
            take_snapshot(tmp_path)


def test_a_killed_run_is_known_at_once(watched: tuple[Path, list[str]], tmp_path: Path) -> None:
    """By its process, and not by a silence, which is too short here to say anything."""
    record = json.loads((watched[0] / "record.json").read_text()) | {"status": "running"}
    write_json(tmp_path / "config.json", record["config"])
    program = "import sys; from sodap.runs.process import *; print(this_process().json()); input()"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        process = json.loads(other.stdout.readline())
        write_json(tmp_path / "record.json", record | {"process": process})
        assert "killed" not in shown(frame(take_snapshot(tmp_path)))
        other.kill()
        other.wait()
    now = take_snapshot(tmp_path)
    assert not now.ended, "it may be resumed while someone watches"
    text = shown(frame(now))
    assert "killed: its process has ended" in text
    assert "--resume" in text
    for changed in ({"machine": "another"}, {"pid": os.getpid()}):
        write_json(tmp_path / "record.json", record | {"process": process | changed})
        # Nothing is known of other machines, and a number may be given to another process.
        assert take_snapshot(tmp_path).gone == ("pid" in changed)


def test_a_run_says_which_process_it_is(watched: tuple[Path, list[str]], tmp_path: Path) -> None:
    class Reader(RunCallback):
        def recorded(self, record: RunRecord) -> None:
            processes.append((record.status, record.process))

    processes: list[tuple[str, object]] = []
    run(load_config("ridge", QUICK), tmp_path / "run", stream=make_stream(), callback=Reader())
    assert {each for status, each in processes if status == "running"} == {this_process()}
    assert processes[-1] == ("finished", None)


def test_a_method_in_closed_form_has_no_epochs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(load_config("ridge", QUICK), folder, stream=make_stream())
    text = shown(frame(take_snapshot(folder)))
    assert "finished: final average" in text
    assert "losses" not in text


def test_waiting_for_a_run_to_start(tmp_path: Path) -> None:
    assert "there is no run yet" in shown(frame(take_snapshot(tmp_path / "soon")))
    for soon in (tmp_path / "soon", tmp_path):  # off a terminal and with --once it does not wait
        for once, terminal in ((False, False), (True, True)):
            console = Console(file=io.StringIO(), force_terminal=terminal)
            with pytest.raises(SodapError, match="there is no run at"):
                watch_run(console, soon, once=once)
    assert "there is no run yet" in shown(frame(take_snapshot(tmp_path)))
    (tmp_path / ".config.json.abc.tmp").touch()  # half-written
    assert "there is no run yet" in shown(frame(take_snapshot(tmp_path)))
    write_json(tmp_path / "config.json", {})
    assert "it has just started" in shown(frame(take_snapshot(tmp_path)))


def test_losses_are_shown_over_the_steps(watched: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, _ = watched
    ce = load_state(folder / "steps", "stage-2")[0]["loss.ce"].tolist()
    assert len(ce) == 4
    assert f"{sparkline(ce)}  " in shown(frame(take_snapshot(folder)))
    shutil.copytree(folder, tmp_path / "old", ignore=shutil.ignore_patterns("steps"))
    text = shown(frame(take_snapshot(tmp_path / "old")))
    assert not re.search(rf"losses.*[{BARS}]", text)
    shutil.copytree(folder, tmp_path / "torn")
    next((tmp_path / "torn" / "steps").glob("stage-2-*")).unlink()  # as while it is replaced
    assert shown(frame(take_snapshot(tmp_path / "torn"))) == text
    assert binned([1.0, 3.0, float("nan"), 5.0, 7.0, 9.0], most=3) == [2.0, 6.0, 9.0]


def test_a_folder_without_a_run_is_refused(tmp_path: Path, sodap: Call) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    found = sodap("watch", ".")
    assert (found.code, found.out) == (2, "")
    assert found.err == "sodap: . holds no run: there is no config.json in it\n"
    with pytest.raises(SodapError, match="is a file, not the folder"):
        take_snapshot(tmp_path / "holiday.jpg")
    write_json(tmp_path / "config.json", {})
    write_json(tmp_path / "record.json", {"mine": 1})
    with pytest.raises(SodapError, match="is not a valid record"):
        take_snapshot(tmp_path)


# ---------------------------------------------------------------------- numbers


def test_a_sparkline_goes_from_lowest_to_highest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.3, 0.3]) == "▅▅"
    assert sparkline([0, *range(8)], width=8) == BARS
    assert len(sparkline([0.1] * 500)) == 16


def a_record(stages: list[int], images: list[int], **training: int) -> RunRecord:
    """`stages`: epochs of the finished ones; `images`: training images of each domain."""
    R = ResultMatrices(accuracy=[], macro_f1=[])
    nothing: list[int] = []
    domains = [
        DomainInfo(name=str(i), counts=SplitCounts(train=[n], val=nothing, test=nothing))
        for i, n in enumerate(images)
    ]
    return RunRecord(
        command=[],
        config=RunConfig(training=Training(**({"epochs": 100, "patience": 5} | training))),
        environment=None,
        stream=StreamInfo(name="made", classes=["a"], domains=domains),
        backbone=None,
        status="running",
        R=R,
        metrics=MetricsByMeasure.of(R),
        stages=[
            StageRecord(
                stage=number,
                domain="",
                epochs=epochs,
                trainable_parameters=0,
                stored_bytes=0,
                seconds=0,
            )
            for number, epochs in enumerate(stages, 1)
        ],
    )


def a_row(stage: int, score: float, seconds: float) -> EpochRow:
    return EpochRow(
        stage=stage,
        domain="",
        epoch=1,
        lr=0.1,
        steps=1,
        losses={},
        weights={},
        val_macro_f1=score,
        val_accuracy=score,
        images_per_second=1.0,
        seconds=seconds,
    )


def test_the_time_left_is_an_upper_bound_at_first() -> None:
    record = a_record([], [100, 200])
    assert time_left(record, []) is None
    # 0.1 s an image: 98 more epochs of 10 s, then 100 of 20 s.
    rows = [a_row(1, 0.5, 10.0), a_row(1, 0.6, 10.0)]
    assert time_left(record, rows) == "at most 49.7 min left"


def test_the_time_left_follows_from_finished_stages() -> None:
    # Stage 1 had 10 epochs; stage 2 is at 4, at twice the cost, and has 6 to go; stage 3 has 10.
    rows = [a_row(1, i / 10, 10.0) for i in range(10)] + [a_row(2, i / 10, 20.0) for i in range(4)]
    expected = 6 * 20 + 10 * 10
    assert time_left(a_record([10], [100, 200, 100]), rows) == f"about {expected / 60:.1f} min left"
    # Beyond what is usual, patience is what is left: the best was one epoch ago, of five.
    rows += [a_row(2, score, 20.0) for score in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.9)]
    assert time_left(a_record([10], [100, 200]), rows) == "about 80 s left"
    assert time_left(a_record([10], [100, 200], epochs=12), rows) == "about to end"


def test_domains_that_are_only_tested_take_no_time() -> None:
    rows = [a_row(1, 0.5, 10.0)]
    one = a_record([], [100], epochs=2)
    assert time_left(one, rows) == time_left(a_record([], [100, 0], epochs=2), rows)
    assert not Snapshot(Path(), one).ended


# ---------------------------------------------------------------------- real processes


class Terminal:
    """A pseudo-terminal that remembers all that was written on it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.seen = ""

    def read(self, until: str | None = None) -> None:
        """Up to some words, or until the other end is closed."""
        while until is None or until not in self.seen:
            try:
                chunk = os.read(self.ours, 65536)
            except OSError:
                chunk = b""
            if not chunk:
                assert until is None, f"it ended without '{until}': {self.seen}"
                return
            self.seen += chunk.decode(errors="replace")


@pytest.mark.slow
def test_a_run_on_a_real_terminal(tmp_path: Path, sodap: Call) -> None:
    """The watcher starts first, waits, shows the run while it learns, and ends with it."""
    terminal = Terminal()
    watcher = subprocess.Popen(
        [str(SODAP), "watch", "run"],
        cwd=tmp_path,
        stdout=terminal.theirs,
        stderr=terminal.theirs,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"},
    )
    os.close(terminal.theirs)

    class Slow(RunCallback):
        def epoch_done(self, stage: Stage, row: EpochRow) -> None:
            if row.epoch == 1:  # go on when the watcher has shown it
                terminal.read(until=f"(stage {stage.number}, epoch 1)")

    try:
        terminal.read(until="waiting for the first record")
        config = load_config("sequential", QUICK)
        run(config, tmp_path / "run", stream=make_stream(), callback=Slow())
        terminal.read()
        assert watcher.wait() == 0
    finally:
        watcher.kill()
        watcher.wait()
        os.close(terminal.ours)
    assert "running, " in terminal.seen
    assert "…" in terminal.seen
    assert "finished: final average" in terminal.seen

    quiet = sodap("watch", "run")
    assert "\x1b" not in quiet.out, "no colours and no cursor off a terminal"
    assert quiet.out.count("finished: final average") == 1
    assert sodap("watch", "run", "--once").out == quiet.out
