from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from sodap.errors import SodapError
from sodap.runs import checkpoint
from sodap.runs.checkpoint import Checkpoint
from sodap.runs.writer import Writer
from sodap.storage import save_state


def test_it_holds_what_was_there_when_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()

    def slowly(*given: Any) -> None:
        assert let_go.wait(30)
        save_state(*given)

    monkeypatch.setattr(checkpoint, "save_state", slowly)
    kept, weights, facts = Checkpoint(tmp_path, Writer()), torch.zeros(3), {"rows": [1]}
    assert kept.read() is None
    assert kept.is_due()
    kept.write({"weights": weights}, facts)
    weights += 1  # training goes on
    facts["rows"].append(2)
    assert not kept.is_due(), "one is still being written"
    assert kept.read() is None
    let_go.set()
    kept.writer.wait()
    found = kept.read()
    assert found is not None
    assert found[0]["weights"].tolist() == [0, 0, 0]
    assert found[1]["rows"] == [1]
    kept.drop()
    assert kept.read() is None


def test_writing_takes_a_small_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Checkpoint(tmp_path, Writer())
    for share, due in ((0, True), (1e9, False)):
        monkeypatch.setattr(checkpoint, "SHARE", share)
        kept.write({"weights": torch.zeros(3)}, {})
        kept.writer.wait()
        assert kept.is_due() == due


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("in the way")
    kept = Checkpoint(tmp_path, Writer())
    kept.write({"weights": torch.zeros(3)}, {})
    with pytest.raises(SodapError, match="cannot write"):
        kept.writer.wait()
