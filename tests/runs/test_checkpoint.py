from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from sodap.errors import SodapError
from sodap.runs import checkpoint as checkpoint_module
from sodap.runs.checkpoint import Checkpoint, CheckpointInfo, Origin
from sodap.runs.record import StreamInfo
from sodap.runs.writer import Writer

STREAM = StreamInfo(name="stripes", classes=["a"], domains=[])
INFO = CheckpointInfo(
    confusions=[],
    stages=[],
    epochs=[],
    origin=Origin(backbone="abc", stream=STREAM, device="cpu"),
    environments=[],
    progress={"rows": [1]},
)


def test_it_holds_the_state_of_the_moment_it_was_begun(tmp_path: Path) -> None:
    later, writer = threading.Event(), Writer()
    checkpoint, weights = Checkpoint(tmp_path, writer), torch.zeros(3)
    rows = [1]
    info = INFO.model_copy(update={"progress": {"rows": rows}})
    assert checkpoint.read() is None
    assert checkpoint.is_due()
    writer.write(lambda: _wait(later))  # a slow disk
    checkpoint.write({"weights": weights}, info)
    weights += 1  # training goes on
    rows.append(2)
    assert not checkpoint.is_due(), "one is still being written"
    assert checkpoint.read() is None
    later.set()
    writer.wait()
    found = checkpoint.read()
    assert found is not None
    assert found[0]["weights"].tolist() == [0, 0, 0]
    assert found[1] == INFO
    checkpoint.delete()
    assert checkpoint.read() is None


def _wait(event: threading.Event) -> None:
    assert event.wait(60)


def test_the_gap_grows_with_the_time_a_checkpoint_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path, Writer())
    for gap, due in ((0, True), (1e9, False)):
        monkeypatch.setattr(checkpoint_module, "GAP", gap)
        checkpoint.write({"weights": torch.zeros(3)}, INFO)
        checkpoint.writer.wait()
        assert checkpoint.is_due() == due


def test_an_error_is_raised_by_the_writer(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("in the way")
    checkpoint = Checkpoint(tmp_path, Writer())
    checkpoint.write({"weights": torch.zeros(3)}, INFO)
    with pytest.raises(SodapError, match="cannot write"):
        checkpoint.writer.wait()
