"""Trackers get the numbers of a run at the right step, and how it ended."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.conftest import TINY, make_stream

import sodap.runs.tracking as tracking
from sodap.errors import SodapError
from sodap.learning.trace import TraceBuffer
from sodap.runs import RunCallback, RunConfig, RunRecord, load_config, run
from sodap.runs.callback import Callbacks
from sodap.runs.evidence import read_steps
from sodap.runs.reading import read_log
from sodap.runs.record import EpochRow
from sodap.runs.tracking import LostTrackerWarning, Tracker, step_numbers
from sodap.streams import Stage

QUICK = [*TINY, "epochs=2", "patience=2", "batch_size=16", "evidence=false"]


class Notebook:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.logged: list[tuple[int | None, dict[str, float]]] = []
        self.ended: list[str] = []
        self.closed: list[int] = []
        self.experiment = SimpleNamespace(finish=lambda exit_code: self.closed.append(exit_code))

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.settings = params

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step, metrics))

    def finalize(self, status: str) -> None:
        self.ended.append(status)

    def of(self, name: str) -> dict[int | None, float]:
        return {step: metrics[name] for step, metrics in self.logged if name in metrics}


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """Takes the place of every tracker."""
    written = Notebook()
    made = dict.fromkeys(tracking.TRACKERS, lambda config, folder: written)
    monkeypatch.setattr(tracking, "TRACKERS", made)
    monkeypatch.setattr(tracking, "find_spec", lambda name: object())
    return written


def learn(
    folder: Path, kind: str = "wandb", recipe: str = "default", *others: RunCallback, **more: Any
) -> RunRecord:
    config = load_config(recipe, QUICK)
    callback = Callbacks(Tracker(kind, config, folder), *others)
    return run(config, folder, stream=make_stream(), callback=callback, **more)


def log_of(folder: Path) -> list[EpochRow]:
    return read_log(folder / "log.jsonl")[0]


def test_a_tracker_gets_the_numbers_of_the_folder(tmp_path: Path, notebook: Notebook) -> None:
    folder = tmp_path / "run"
    record = learn(folder)
    assert notebook.settings == record.config.model_dump(mode="json")
    rows = log_of(folder)
    assert list(notebook.of("val/macro_f1")) == [1, 2, 3, 4], "epochs are counted over stages"
    for step, row in enumerate(rows, start=1):
        assert notebook.of("val/macro_f1")[step] == row.val_macro_f1
        assert notebook.of("loss/ce")[step] == row.losses["ce"]
        assert notebook.of("stage")[step] == row.stage
    assert notebook.of("weight/ce") == {s: rows[s - 1].weights["ce"] for s in (3, 4)}
    for number, name in enumerate(("domain 0", "domain 1")):
        accuracies = [row[number] for row in record.R.accuracy]
        assert notebook.of(f"R/accuracy/{name}") == dict(zip((2, 4), accuracies, strict=True))
    drift = record.stages[1].begun.drift
    assert drift is not None
    assert notebook.of("drift/score") == {4: drift.score}
    assert notebook.of("pool/frozen") == {2: 0, 4: 60}
    assert record.metrics.accuracy is not None
    last = notebook.of("metric/average_accuracy")[4]
    assert last == record.metrics.accuracy.average_accuracy
    assert notebook.of("metric/average_forgetting").keys() == {4}, "undefined after one stage"
    assert notebook.ended == ["success"]
    assert notebook.closed == [0]


def test_a_tracker_gets_the_steps(tmp_path: Path, notebook: Notebook) -> None:
    folder = tmp_path / "run"
    learn(folder)
    traces = read_steps(folder, [(row.stage, row.epoch) for row in log_of(folder)])
    for kind in ("loss", "weight"):
        expected = [
            getattr(trace, "losses" if kind == "loss" else "weights").get("ce", torch.empty(0))
            for trace in traces.values()
        ]
        before = 8 - sum(map(len, expected))  # stage 1 learns no weights
        found = notebook.of(f"step/{kind}/ce")
        assert list(found) == list(range(before + 1, 9)), "steps are counted over stages"
        assert list(found.values()) == torch.cat(expected).tolist()


def test_many_steps_become_few_means() -> None:
    buffer = TraceBuffer(7, torch.device("cpu"))
    for step in range(7):
        late = {"old": torch.tensor(10.0 * step)} if step > 4 else {}
        buffer.add(2, {"ce": torch.tensor(float(step))} | late, {"ce": torch.tensor(1.0)})
    points = list(step_numbers(buffer.fetch(1), points=3))
    assert points == [
        (3, {"step/loss/ce": 1.0, "step/weight/ce": 1.0}),
        (6, {"step/loss/ce": 4.0, "step/loss/old": 50.0, "step/weight/ce": 1.0}),
        (7, {"step/loss/ce": 6.0, "step/loss/old": 60.0, "step/weight/ce": 1.0}),
    ]


class PluggedOutError(Exception):
    pass


class Stopper(RunCallback):
    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        if (stage.number, row.epoch) == (2, 1):
            raise PluggedOutError


def test_a_resumed_run_continues_at_its_step(tmp_path: Path, notebook: Notebook) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PluggedOutError):
        learn(folder, "mlflow", "sequential", Stopper())
    assert notebook.ended == ["failed"]
    assert notebook.closed == [], "only one of them leaves its runs open"
    assert list(notebook.of("lr")) == [1, 2, 3]
    notebook.logged.clear()
    learn(folder, "mlflow", "sequential", resume=True)
    assert list(notebook.of("lr")) in ([4], [3, 4]), "not every epoch has a checkpoint"
    assert list(notebook.of("R/accuracy/domain 1")) == [4]
    assert list(notebook.of("step/loss/ce"))[-2:] == [7, 8]
    assert notebook.ended == ["failed", "success"]


def test_without_epochs_the_x_axis_counts_stages(tmp_path: Path, notebook: Notebook) -> None:
    learn(tmp_path / "run", "tensorboard", "ridge")
    assert list(notebook.of("metric/final_average")) == [1, 2]
    assert notebook.of("lr") == {}


def test_a_run_goes_on_without_a_tracker_that_fails(tmp_path: Path, notebook: Notebook) -> None:
    def refuse(metrics: dict[str, float], step: int | None = None) -> None:
        raise ConnectionError("the server is away\nand more")

    notebook.log_metrics = refuse  # type: ignore[method-assign]
    with pytest.warns(LostTrackerWarning) as caught:
        record = learn(tmp_path / "run", recipe="sequential")
    assert record.status == "finished"
    messages = [str(each.message) for each in caught]
    assert messages == ["wandb gets no more numbers: the server is away"]


def test_names_are_valid_for_every_tracker(notebook: Notebook, tmp_path: Path) -> None:
    tracker = Tracker("mlflow", RunConfig(), tmp_path)
    tracker.started(make_stream(), 0)
    tracker._log({"R/accuracy/Zürich (2019)": 0.5}, 1)
    assert notebook.logged == [(1, {"R/accuracy/Z_rich _2019_": 0.5})]


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "lightning")],
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, missing: str
) -> None:
    present = {"tensorboard", "mlflow", "wandb", "lightning"} - {missing}
    monkeypatch.setattr(tracking, "find_spec", lambda name: name if name in present else None)
    with pytest.raises(SodapError, match=rf"--log {kind} needs .* pip install 'sodap\[track\]'"):
        Tracker(kind, RunConfig(), tmp_path)


def test_an_unknown_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="no log is called 'paper'; there are: tensorboard"):
        Tracker("paper", RunConfig(), tmp_path)


def test_tensorboard_can_read_it(tmp_path: Path) -> None:
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    folder = tmp_path / "run"
    record = learn(folder, "tensorboard", "sequential")
    events = reading.EventAccumulator(str(folder / "tensorboard")).Reload()
    found = {event.step: event.value for event in events.Scalars("loss/ce")}
    expected = {step: row.losses["ce"] for step, row in enumerate(log_of(folder), start=1)}
    assert found == pytest.approx(expected)
    last = events.Scalars("R/accuracy/domain 0")[-1]
    assert (last.step, last.value) == (4, pytest.approx(record.R.accuracy[1][0]))
    settings = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]
    assert json.loads(settings) == record.config.model_dump(mode="json")
    assert "hp_metric" not in events.Tags()["scalars"]
