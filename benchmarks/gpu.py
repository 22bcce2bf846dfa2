"""Speed on a GPU compared with the limit, measured in one run: `python -m benchmarks.gpu`.

Prints every figure with its target and, with --record FILE, writes them to a JSON file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch._dynamo

from benchmarks.entmax import TARGETS as ENTMAX
from benchmarks.entmax import against_package
from benchmarks.figures import show, write
from benchmarks.steps import (
    Contender,
    age,
    make,
    prediction_ratio,
    race,
    statistics_vs_epoch,
    step_ratio,
    wait,
)

# Published training rates of ViT-B/16 at batch 64 on the same GPU model, in images per second.
PUBLIC = {"mammoth_coda_bf16": 1519, "uniprompt_bf16": 2041, "coda_as_shipped": 277}

TARGETS = {
    "train_step_vs_limit": (0.87, ">="),
    "train_step_vs_limit_256": (0.92, ">="),
    "inference_vs_limit": (0.95, ">="),
    "vs_mammoth_coda_bf16": (2.3, ">="),
    "vs_uniprompt_bf16": (1.7, ">="),
    "vs_coda_as_shipped": (12.0, ">="),
    "peak_memory_vs_limit": (1.15, "<="),
    "new_stage_first_step_seconds": (2.0, "<="),
    "new_stage_recompilations": (0, "<="),
    "start_to_first_step_seconds": (60.0, "<="),
    "stage50_vs_stage1": (1.05, "<="),
    "stage50_memory_vs_stage1": (1.05, "<="),
    "statistics_vs_epoch": (0.02, "<="),
    "cls_row_step_vs_full": (0.6, "<="),
    "cls_row_memory_vs_full": (0.25, "<="),
    **ENTMAX["cuda"],
}


def graphs_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def measure_batch(batch: int, args: argparse.Namespace) -> dict[str, float]:
    """Compare Residual SODAP with the limit at one batch size."""
    began = time.perf_counter()
    ours = make("residual-sodap", args.backbone, batch, "cuda", compiled=args.compile)
    ours.learn()
    wait(ours.learner.runtime.device)
    found = {"start_to_first_step_seconds": time.perf_counter() - began}
    row = make(
        "residual-sodap",
        args.backbone,
        batch,
        "cuda",
        compiled=args.compile,
        options={"backprop": "cls_row"},
    )
    limit = make("limit", args.backbone, batch, "cuda", compiled=args.compile)
    frozen = make("untouched", args.backbone, batch, "cuda", compiled=args.compile)
    sharp = make("sharp-limit", args.backbone, batch, "cuda", compiled=args.compile)
    bare = make("sharp-untouched", args.backbone, batch, "cuda", compiled=args.compile)
    race([ours, row, limit, frozen, sharp, bare], rounds=args.rounds, times=args.times)
    print(
        f"batch {batch}: train {ours.images_per_second():.0f} images/s, along the CLS row "
        f"{row.images_per_second():.0f}, limit {limit.images_per_second():.0f}; "
        f"predict {ours.predictions_per_second():.0f}, "
        f"frozen ViT {frozen.predictions_per_second():.0f}; "
        f"memory {ours.peak_bytes / 2**20:.0f} MiB, along the CLS row "
        f"{row.peak_bytes / 2**20:.0f} MiB, limit {limit.peak_bytes / 2**20:.0f} MiB",
        flush=True,
    )
    suffix = "" if batch == args.batch[0] else f"_{batch}"
    found |= {
        f"train_images_per_second{suffix}": ours.images_per_second(),
        f"limit_images_per_second{suffix}": limit.images_per_second(),
        f"train_step_vs_limit{suffix}": step_ratio(limit, ours),
        f"train_step_vs_sharp_limit{suffix}": step_ratio(sharp, ours),
        f"inference_vs_limit{suffix}": prediction_ratio(frozen, ours),
        f"inference_vs_sharp_limit{suffix}": prediction_ratio(bare, ours),
        f"inference_images_per_second{suffix}": ours.predictions_per_second(),
        f"frozen_images_per_second{suffix}": frozen.predictions_per_second(),
        f"peak_memory_vs_limit{suffix}": ours.peak_bytes / limit.peak_bytes,
        f"cls_row_images_per_second{suffix}": row.images_per_second(),
        f"cls_row_step_vs_full{suffix}": step_ratio(row, ours),
        f"cls_row_memory_vs_full{suffix}": row.peak_bytes / ours.peak_bytes,
    }
    if not suffix:
        found["statistics_vs_epoch"] = statistics_vs_epoch(ours)
        found |= {f"vs_{n}": ours.images_per_second() / rate for n, rate in PUBLIC.items()}
        found |= ageing(ours, args)
    return found


def ageing(young: Contender, args: argparse.Namespace) -> dict[str, float]:
    """Cost of a stage switch, and of a step in stage 50."""
    device = young.learner.runtime.device
    before = graphs_compiled()
    began = time.perf_counter()
    age(young, 2)
    young.learn()
    wait(device)
    first = time.perf_counter() - began
    switched = graphs_compiled()
    began = time.perf_counter()
    age(young, 3)
    young.learn()
    wait(device)
    first = min(first, time.perf_counter() - began)
    repeated = graphs_compiled() - switched
    old = make("residual-sodap", args.backbone, young.batch, "cuda", compiled=args.compile)
    fresh = make("residual-sodap", args.backbone, young.batch, "cuda", compiled=args.compile)
    age(old, 50)
    race([fresh, old], rounds=args.rounds, times=args.times)
    return {
        "second_stage_compilations": switched - before,
        "new_stage_recompilations": repeated,
        "new_stage_first_step_seconds": first,
        "stage50_vs_stage1": step_ratio(old, fresh),
        "stage50_memory_vs_stage1": old.peak_bytes / fresh.peak_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--backbone", default="vit_base")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here; see python -m benchmarks.cpu")
    figures: dict[str, float] = {}
    for batch in args.batch:
        figures = measure_batch(batch, args) | figures
    figures |= against_package("cuda")
    show(figures, TARGETS)
    if args.record is not None:
        write(args.record, figures, TARGETS, backbone=args.backbone, compiled=args.compile)


if __name__ == "__main__":
    main()
