"""In which order a stage does what, and with which images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from sodap.learning import Learner, Training, learner, loop
from sodap.learning.forward import Forward
from sodap.learning.trace import TraceBuffer
from sodap.streams import BatchLoader, Split, Stream

TRAINING = Training(epochs=2, patience=2, batch_size=16)


def test_an_epoch_is_waited_for_once(stripes: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU gets the validation images right behind the last step; only then are numbers read."""
    said: list[str] = []

    def telling(owner: Any, name: str) -> None:
        act = getattr(owner, name)

        def told(*given: Any) -> Any:
            said.append(name)
            return act(*given)

        monkeypatch.setattr(owner, name, told)

    telling(loop, "train_epoch")
    telling(Forward, "answers")
    telling(TraceBuffer, "fetch")
    Learner(stripes.classes, training=TRAINING, device="cpu").learn(stripes.domains[0])
    assert said == ["train_epoch", "answers", "fetch"] * 2


@pytest.mark.parametrize("method", ["residual-sodap", "ridge"])
def test_a_stage_looks_at_images_that_lie_at_hand(
    method: str, stripes: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first look to its last they are the ones that a GPU would have in its memory."""
    home: list[Split] = []
    read: list[Split] = []

    def brought(splits: Sequence[Split], device: torch.device) -> list[Split]:
        home.extend(Split(each.images.clone(), each.labels) for each in splits)
        return home

    class Watched(BatchLoader):
        def __init__(self, split: Split, *given: Any, **named: Any) -> None:
            read.append(split)
            super().__init__(split, *given, **named)

    monkeypatch.setattr(learner, "to_gpu_if_fits", brought)
    monkeypatch.setattr(loop, "BatchLoader", Watched)
    monkeypatch.setattr("sodap.learning.forward.BatchLoader", Watched)
    Learner(stripes.classes, method=method, training=TRAINING, device="cpu").learn(
        stripes.domains[0]
    )
    assert len(home) == 2
    assert {id(split) for split in read} == {id(split) for split in home}
