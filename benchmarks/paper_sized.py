"""Runs at the sizes of the paper: `python -m benchmarks.paper_sized [dr|skin|core50 ...]`.

The streams have as many images per domain and class as the paper's, but random ones. The default
recipe learns them as `sodap run` does, with all files of a run, for twenty epochs per stage and
without early stopping. With `--epochs` or `--stages` a part is measured and the whole is
extrapolated, which the record says. A name that is given several times is run several times.
Utilisation, which varies by a few percent between short runs, is then the median. The minutes are
those of the first run, which includes compilation.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.busy import BusyGpu
from benchmarks.figures import show, write
from sodap.runs.callback import RunCallback
from sodap.runs.config import RunConfig, load_config
from sodap.runs.reading import read_log
from sodap.runs.record import EpochRow
from sodap.runs.runner import run
from sodap.streams import Augmentation, Domain, Split, Stage, Stream
from sodap.streams.protocols import Protocol, find_protocol

EPOCHS = 20
PROTOCOLS = {"dr": "paper-dr", "skin": "paper-skin", "core50": "paper-core50"}
KINDS = ("train", "val", "test")
TARGETS = {f"{name}_gpu_busy": (0.9, ">=") for name in PROTOCOLS}


@dataclass(frozen=True)
class Sizes:
    """Number of images of each class: `counts[domain][split][class]`."""

    name: str
    classes: tuple[str, ...]
    counts: tuple[Mapping[str, tuple[int, ...]], ...]
    augmentation: Augmentation

    @property
    def training_images(self) -> int:
        return sum(sum(domain["train"]) for domain in self.counts)


def sizes_of(name: str, protocol: Protocol) -> Sizes:
    """Sizes of the splits, from the numbers in the paper and the fractions of the protocol.

    The paper prints all images of a domain, or only those for training.
    """
    parts = dict(zip(KINDS, protocol.fractions, strict=True))
    known = parts[protocol.expected_split] if protocol.expected_split else sum(parts.values())
    counts = []
    for plan in protocol.domains:
        assert plan.expected is not None
        printed = [plan.expected[each] for each in protocol.classes]
        counts.append(
            {kind: tuple(round(n * part / known) for n in printed) for kind, part in parts.items()}
        )
    return Sizes(name, protocol.classes, tuple(counts), protocol.augmentation)


def random_stream(sizes: Sizes, side: int, stages: int) -> Stream:
    """A stream of random images, of which the first `stages` domains are learned.

    All domains are views of one tensor with different offsets, to save memory.
    """
    largest = max(sum(map(sum, domain.values())) for domain in sizes.counts)
    draw = torch.Generator().manual_seed(0)
    few = torch.randint(0, 256, (64, 3, side, side), dtype=torch.uint8, generator=draw)
    bank = torch.empty(largest + 1 + len(sizes.counts), 3, side, side, dtype=torch.uint8)
    for at in range(0, len(bank), len(few)):
        bank[at : at + len(few)] = few[: len(bank) - at].roll(at, dims=-1)
    domains = []
    for number, counts in enumerate(sizes.counts, start=1):
        place, splits = number, []
        for kind in KINDS:
            labels = torch.arange(len(sizes.classes)).repeat_interleave(torch.tensor(counts[kind]))
            splits.append(Split(bank[place : place + len(labels)], labels))
            place += len(labels)
        train, val, test = splits
        domains.append(Domain(f"domain {number}", train, val, test))
    return Stream(
        sizes.name,
        sizes.classes,
        tuple(domains[:stages]),
        tuple(domains[stages:]),
        sizes.augmentation,
    )


class Clock(RunCallback):
    """Notes when the first epoch ends: by then everything is compiled and captured."""

    def __init__(self) -> None:
        self.warm: float | None = None

    def epoch_done(self, stage: Stage, row: EpochRow) -> None:
        if self.warm is None:
            self.warm = time.perf_counter()
        print(
            f"  stage {row.stage}, epoch {row.epoch}: {row.seconds:.1f} s, "
            f"{row.images_per_second:.0f} images/s in training",
            flush=True,
        )


def configuration(changes: Sequence[str], epochs: int) -> RunConfig:
    """The default recipe without early stopping."""
    wanted = [f"epochs={epochs}", f"patience={epochs}", "weights=random", *changes]
    return load_config("default", wanted)


def measure_run(sizes: Sizes, config: RunConfig, side: int, stages: int) -> dict[str, Any]:
    """Measure one run, including all files it writes."""
    stream = random_stream(sizes, side, stages)
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="sodap-benchmark-") as folder, BusyGpu() as gpu:
        began = time.perf_counter()
        record = run(config, Path(folder) / "run", stream=stream, callback=clock)
        seconds = time.perf_counter() - began
        rows, _ = read_log(Path(folder) / "run" / "log.jsonl")
    return {
        "stages": len(record.stages),
        "epochs": config.training.epochs,
        "training_images": sum(len(domain.train) for domain in stream.domains),
        "minutes": seconds / 60,
        "epoch_seconds": [row.seconds for row in rows],
        "stage_seconds": [stage.seconds for stage in record.stages],
        "gpu_busy": gpu.share(clock.warm or began),
        "train_images_per_second": record.throughput.train,
        "inference_images_per_second": record.throughput.inference,
        "peak_gpu_bytes": max((stage.peak_gpu_bytes or 0) for stage in record.stages),
    }


def extrapolate(part: Mapping[str, Any], sizes: Sizes, epochs: int) -> float:
    """Minutes of a full run, from those of a part.

    Epochs take time in proportion to their images, and so does the rest of a stage (drift,
    statistics, tests on all domains, files). The start of the run takes the same time.
    """
    stage_images: list[int] = [sum(domain["train"]) for domain in sizes.counts]
    learned = stage_images[: part["stages"]]
    each, rows = part["epochs"], list(part["epoch_seconds"])
    images = [count for count in learned for _ in range(each)]
    start: float = part["minutes"] * 60 - sum(part["stage_seconds"])
    # The first epoch compiles, so it is used only if there is no other.
    steady = list(zip(rows, images, strict=True))[1:] or [(rows[0], images[0])]
    per_image: float = median(seconds / count for seconds, count in steady)
    warm_up = max(0.0, rows[0] - per_image * images[0])
    rest: float = (sum(part["stage_seconds"]) - sum(rows)) / sum(learned)
    total: float = start + warm_up + (per_image * epochs + rest) * sum(stage_images)
    return total / 60


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_sized", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="dr|skin|core50", help="default: all three")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs per stage")
    parser.add_argument("--stages", type=int, help="number of stages to learn; default: all")
    parser.add_argument("--backbone", default="vit_base")
    parser.add_argument("--side", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--change", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    unknown = set(args.names) - PROTOCOLS.keys()
    if unknown:
        parser.error(f"no stream is called {unknown.pop()}; there are {', '.join(PROTOCOLS)}")
    changes = [f"backbone={args.backbone}", f"compile={str(args.compile).lower()}", *args.change]
    config = configuration(changes, args.epochs)
    figures: dict[str, float] = {}
    runs: dict[str, list[dict[str, Any]]] = {}
    for name in args.names or PROTOCOLS:
        sizes = sizes_of(name, find_protocol(PROTOCOLS[name]))
        stages = min(args.stages or len(sizes.counts), len(sizes.counts))
        print(f"{name}: {sizes.training_images} training images, {stages} stages", flush=True)
        parts = runs.setdefault(name, [])
        parts.append(measure_run(sizes, config, args.side, stages))
        if stages == len(sizes.counts) and args.epochs == EPOCHS:
            figures[f"{name}_minutes"] = parts[0]["minutes"]
        else:
            figures[f"{name}_minutes_extrapolated"] = extrapolate(parts[0], sizes, EPOCHS)
        for figure in ("gpu_busy", "train_images_per_second", "inference_images_per_second"):
            known = [part[figure] for part in parts if part[figure] is not None]
            if known:
                figures[f"{name}_{figure}"] = median(known)
    show(figures, TARGETS)
    if args.record is not None:
        note = " ".join(describe(name, part) for name, parts in runs.items() for part in parts)
        write(args.record, figures, TARGETS, note=note, config=config.described(), runs=runs)


def describe(name: str, part: Mapping[str, Any]) -> str:
    """One sentence about what was run."""
    return (
        f"{name}: {part['stages']} stages with {part['epochs']} epochs each were run, "
        f"in {part['minutes']:.1f} minutes."
    )


if __name__ == "__main__":
    main()
