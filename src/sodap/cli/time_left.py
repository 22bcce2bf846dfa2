"""How long a run will take, from the epochs that it has done."""

from __future__ import annotations

from collections.abc import Sequence

from sodap.formats import format_duration
from sodap.runs.record import EpochRow, RunRecord


def time_left(record: RunRecord, rows: Sequence[EpochRow]) -> str | None:
    """Estimated time left, from the time per image so far; None before the first epoch.

    Early stopping decides how many epochs a stage has. So finished stages tell how many to expect;
    before the first is finished, only the maximum is known.
    """
    training = record.config.training
    images = [sum(domain.counts.train) for domain in record.stream.learned]
    seen = sum(images[row.stage - 1] for row in rows)
    if not seen:
        return None
    cost = sum(row.seconds for row in rows) / seen
    done = record.stages
    usual = sum(stage.epochs for stage in done) / len(done) if done else training.epochs
    left = 0.0
    for stage in range(len(done) + 1, len(images) + 1):
        scores = [row.val_macro_f1 for row in rows if row.stage == stage]
        epochs = usual
        if scores:
            bad = len(scores) - 1 - scores.index(max(scores))
            patience = min(training.patience - bad, training.epochs - len(scores))
            epochs = max(usual - len(scores), patience)
        left += max(0.0, epochs) * images[stage - 1] * cost
    if left < 1:
        return "about to end"
    return f"{'about' if done else 'at most'} {format_duration(left)} left"
