"""One stage of training: what it reads, and what its history says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.conftest import TINY_VIT

from sodap.learning import Learner, StageProgress, Training, learner
from sodap.streams import Split, Stream

TRAINING = Training(epochs=3, patience=3, batch_size=16, lr=3e-3)


def test_the_history_has_the_scores_of_the_state_after_each_epoch(stripes: Stream) -> None:
    domain = stripes.domains[0]
    teacher = Learner(stripes.classes, training=TRAINING, device="cpu", **TINY_VIT)
    scores: list[tuple[int, float, float]] = []
    steps: list[tuple[int, int, int]] = []

    def evaluate(progress: StageProgress) -> None:
        found = teacher.evaluate(domain.val)
        scores.append((progress.epoch, found.macro_f1, found.accuracy))

    progress = teacher.learn(domain, on_epoch=evaluate, on_batch=lambda *step: steps.append(step))
    rows = progress.history
    assert [(r["epoch"], r["val_macro_f1"], r["val_accuracy"]) for r in rows] == scores
    assert steps == [(epoch, step, 2) for epoch in (1, 2, 3) for step in (1, 2)]
    assert all(row["steps"] == 2 and row["stage"] == 1 for row in rows)
    for row in rows:
        assert row["images_per_second"] >= len(domain.train) / row["seconds"]
    assert progress.best_score == max(score for _, score, _ in scores)


@pytest.mark.parametrize("method", ["residual-sodap", "ridge"])
def test_a_stage_reads_only_the_splits_that_were_moved_to_the_device(
    method: str, stripes: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The domain itself is blank: a pass over it would give another state."""
    domain = stripes.domains[0]
    blank = replace(
        domain,
        train=Split(torch.zeros_like(domain.train.images), domain.train.labels),
        val=Split(torch.zeros_like(domain.val.images), domain.val.labels),
    )

    def learned(moved: bool) -> tuple[StageProgress, dict[str, torch.Tensor]]:
        found = Learner(stripes.classes, method=method, training=TRAINING, device="cpu", **TINY_VIT)
        return found.learn(blank if moved else domain), found.method.state()

    progress, state = learned(moved=False)
    monkeypatch.setattr(learner, "to_gpu_if_fits", lambda *_: [domain.train, domain.val])
    same_progress, same_state = learned(moved=True)
    assert same_progress.best_score == progress.best_score
    assert all(torch.equal(value, same_state[name]) for name, value in state.items())
