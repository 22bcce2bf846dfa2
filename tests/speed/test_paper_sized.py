"""Runs at the paper's sizes."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import paper_sized
from benchmarks.busy import BusyGpu
from benchmarks.paper_sized import (
    PROTOCOLS,
    Sizes,
    configuration,
    extrapolate,
    measure_run,
    random_stream,
    sizes_of,
)

from sodap.streams import Augmentation
from sodap.streams.protocols import find_protocol

TINY = Sizes(
    "tiny",
    ("a", "b"),
    tuple({"train": (16, 8), "val": (4, 4), "test": (3, 5)} for _ in range(3)),
    Augmentation(),
)


@pytest.mark.parametrize(
    ("name", "images", "stages"), [("dr", 24_399, 3), ("skin", 3_118, 3), ("core50", 115_401, 11)]
)
def test_sizes_are_the_papers(name: str, images: int, stages: int) -> None:
    sizes = sizes_of(name, find_protocol(PROTOCOLS[name]))
    assert sizes.training_images == images
    assert len(sizes.counts) == stages
    for domain in sizes.counts:
        assert 0.69 < sum(domain["train"]) / sum(map(sum, domain.values())) < 0.81
        assert sum(domain["val"]) == pytest.approx(sum(domain["test"]), abs=len(sizes.classes))


def test_domains_share_memory_but_splits_share_no_image() -> None:
    stream = random_stream(TINY, 16, 2)
    assert [domain.name for domain in stream.domains] == ["domain 1", "domain 2"]
    assert [domain.name for domain in stream.unseen] == ["domain 3"]
    homes = {
        split.images.untyped_storage().data_ptr() for d in stream.tested for _, split in d.splits()
    }
    assert len(homes) == 1
    for domain in stream.tested:
        assert domain.train.labels.bincount().tolist() == [16, 8]
        places = [
            range(
                split.images.storage_offset(), split.images.storage_offset() + split.images.numel()
            )
            for _, split in domain.splits()
        ]
        assert all(a.stop <= b.start for a, b in itertools.pairwise(places))
    first, second = (domain.train.images for domain in stream.domains)
    assert not torch.equal(first, second)


def test_a_part_is_measured_and_extrapolated() -> None:
    config = configuration(["backbone=micro", "bottleneck=16", "device=cpu", "batch_size=8"], 2)
    assert config.training.patience == config.training.epochs == 2
    part = measure_run(TINY, config, 32, 2)
    assert (part["stages"], part["epochs"], part["training_images"]) == (2, 2, 48)
    assert len(part["epoch_seconds"]) == 4
    assert part["gpu_busy"] is None or 0 <= part["gpu_busy"] <= 1
    assert 0 < extrapolate(part, TINY, 2) < extrapolate(part, TINY, 20)


def test_extrapolation_of_known_durations() -> None:
    """10 s to start, 5 s to warm up, 4 s per epoch, 3 s per stage besides the epochs."""
    part = {
        "stages": 2,
        "epochs": 2,
        "minutes": (10 + 5 + 2 * (2 * 4 + 3)) / 60,
        "epoch_seconds": [9.0, 4.0, 4.0, 4.0],
        "stage_seconds": [5 + 8 + 3.0, 8 + 3.0],
    }
    assert extrapolate(part, TINY, 20) == pytest.approx((10 + 5 + 3 * (20 * 4 + 3)) / 60)
    complete = part | {"stages": 3, "epoch_seconds": [9.0] + [4.0] * 5}
    complete |= {"stage_seconds": [16.0, 11.0, 11.0], "minutes": (10 + 38) / 60}
    assert extrapolate(complete, TINY, 2) == pytest.approx(complete["minutes"])


def test_utilisation_since_a_time() -> None:
    with BusyGpu() as gpu:
        pass
    gpu.samples = [(1.0, 0.0), (2.0, 0.5), (3.0, 1.0)]
    assert gpu.share(2.0) == 0.75
    assert gpu.share(4.0) is None


def test_a_name_given_several_times_is_run_several_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are medians, except the minutes, which are those of the first run."""
    rates = {"train_images_per_second": 1.0, "inference_images_per_second": None}
    size = {"stages": 3, "epochs": 20}
    measures = [(1.0, 0.9), (0.3, 0.7), (0.4, 0.8)]
    parts = iter([{**size, **rates, "minutes": m, "gpu_busy": busy} for m, busy in measures])
    monkeypatch.setattr(paper_sized, "measure_run", lambda *_: next(parts))
    file = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["paper_sized", *["skin"] * 3, "--record", str(file)])
    paper_sized.main()
    record = json.loads(file.read_text())
    assert record["figures"] == {
        "skin_minutes": 1.0,
        "skin_gpu_busy": 0.8,
        "skin_train_images_per_second": 1.0,
    }
    assert len(record["runs"]["skin"]) == 3
