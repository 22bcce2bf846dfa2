"""Speed on a processor against the limit, measured in one run: `make bench`.

Prints every figure beside its target and, with --record, writes them to a JSON file by name.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as the command line does

from benchmarks.entmax import against_package
from benchmarks.figures import show, write
from benchmarks.steps import age, make, race

TARGETS = {
    "train_step_vs_limit_micro": (1.15, "<="),
    "train_step_vs_limit_deit_tiny": (1.15, "<="),
    "inference_vs_limit_micro": (1.05, "<="),
    "inference_vs_limit_deit_tiny": (1.05, "<="),
    "stage50_vs_stage1": (1.05, "<="),
    "entmax_vs_package": (1.0, ">="),
}


def against_limit(backbone: str, batch: int, rounds: int, times: int) -> dict[str, float]:
    """Seconds of ours over seconds of the limit."""
    ours = make("residual-sodap", backbone, batch, "cpu")
    limit = make("limit", backbone, batch, "cpu")
    frozen = make("untouched", backbone, batch, "cpu")
    race([ours, limit, frozen], rounds=rounds, times=times, warm_up=2)
    print(
        f"{backbone}, batch {batch}: train {ours.images_per_second():.0f} images/s, limit "
        f"{limit.images_per_second():.0f}; predict {ours.predictions_per_second():.0f}, "
        f"frozen ViT {frozen.predictions_per_second():.0f}",
        flush=True,
    )
    return {
        f"train_step_vs_limit_{backbone}": limit.images_per_second() / ours.images_per_second(),
        f"inference_vs_limit_{backbone}": frozen.predictions_per_second()
        / ours.predictions_per_second(),
    }


def ageing(rounds: int, times: int) -> dict[str, float]:
    """The fiftieth stage against the first."""
    fresh = make("residual-sodap", "micro", 64, "cpu")
    old = make("residual-sodap", "micro", 64, "cpu")
    age(old, 50)
    race([fresh, old], rounds=rounds, times=times, warm_up=2)
    return {"stage50_vs_stage1": fresh.images_per_second() / old.images_per_second()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    figures = against_limit("micro", 64, args.rounds, 3)
    figures |= against_limit("deit_tiny", 16, args.rounds, 1)
    figures |= ageing(args.rounds, 3)
    figures |= against_package("cpu")
    show(figures, TARGETS)
    if args.record is not None:
        write(args.record, figures, TARGETS)


if __name__ == "__main__":
    main()
