"""Speed on a CPU compared with the limit, measured in one run: `make bench`.

Prints every figure with its target and, with --record FILE, writes them to a JSON file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.entmax import TARGETS as ENTMAX
from benchmarks.entmax import against_package, peak_bytes
from benchmarks.figures import show, write
from benchmarks.steps import (
    age,
    make,
    prediction_ratio,
    race,
    statistics_vs_epoch,
    step_ratio,
)

TARGETS = {
    "train_step_vs_limit_micro": (1.15, "<="),
    "train_step_vs_limit_deit_tiny": (1.15, "<="),
    "inference_vs_limit_micro": (1.05, "<="),
    "inference_vs_limit_deit_tiny": (1.05, "<="),
    "stage50_vs_stage1": (1.05, "<="),
    "start_to_first_step_seconds": (60.0, "<="),
    "new_stage_first_step_seconds": (2.0, "<="),
    "statistics_vs_epoch": (0.02, "<="),
    "cls_row_step_vs_full_micro": (0.75, "<="),
    "cls_row_step_vs_full_deit_tiny": (0.6, "<="),
    "cls_row_memory_vs_full_deit_tiny": (0.25, "<="),
    **ENTMAX["cpu"],
}


def against_limit(backbone: str, batch: int, rounds: int) -> dict[str, float]:
    """Ratios of the method's durations to the limit's, and of `backprop=cls_row` to the default."""
    ours = make("residual-sodap", backbone, batch, "cpu")
    row = make("residual-sodap", backbone, batch, "cpu", options={"backprop": "cls_row"})
    limit = make("limit", backbone, batch, "cpu")
    frozen = make("untouched", backbone, batch, "cpu")
    race([ours, row, limit, frozen], rounds=rounds, times=1, warm_up=2)
    print(
        f"{backbone}, batch {batch}: train {ours.images_per_second():.0f} images/s, along the CLS "
        f"row {row.images_per_second():.0f}, limit {limit.images_per_second():.0f}; "
        f"predict {ours.predictions_per_second():.0f}, "
        f"frozen ViT {frozen.predictions_per_second():.0f}",
        flush=True,
    )
    device = ours.learner.runtime.device
    figures = {
        f"train_step_vs_limit_{backbone}": step_ratio(ours, limit),
        f"inference_vs_limit_{backbone}": prediction_ratio(ours, frozen),
        f"cls_row_step_vs_full_{backbone}": step_ratio(row, ours),
        f"cls_row_memory_vs_full_{backbone}": peak_bytes(row.learn, device)
        / peak_bytes(ours.learn, device),
    }
    if backbone == "micro":
        figures["statistics_vs_epoch"] = statistics_vs_epoch(ours)
    return figures


def ageing(rounds: int) -> dict[str, float]:
    """Ratio of a step in stage 50 to one in stage 1."""
    fresh = make("residual-sodap", "micro", 64, "cpu")
    old = make("residual-sodap", "micro", 64, "cpu")
    age(old, 50)
    race([fresh, old], rounds=rounds, times=1, warm_up=2)
    return {"stage50_vs_stage1": step_ratio(old, fresh)}


def start() -> dict[str, float]:
    """Seconds from the start to the end of the first step, and of a stage switch."""
    began = time.perf_counter()
    learner = make("residual-sodap", "micro", 64, "cpu")
    learner.learn()
    ready = time.perf_counter()
    age(learner, 2)
    learner.learn()
    return {
        "start_to_first_step_seconds": ready - began,
        "new_stage_first_step_seconds": time.perf_counter() - ready,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    figures = start()
    figures |= against_limit("micro", 64, 3 * args.rounds)
    figures |= against_limit("deit_tiny", 16, args.rounds)
    figures |= ageing(3 * args.rounds)
    figures |= against_package("cpu")
    show(figures, TARGETS)
    if args.record is not None:
        write(args.record, figures, TARGETS)


if __name__ == "__main__":
    main()
