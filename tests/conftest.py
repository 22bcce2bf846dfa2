"""Small streams and learners that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Tests run side by side, one thread each: two processes that share two cores with two threads
# each spend their time waiting for one another. Must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from sodap.streams import Domain, Split, Stream


def make_split(count: int, classes: int, tint: float, seed: int, size: int = 32) -> Split:
    """Noisy images whose class is the brightness of a stripe and whose domain is the tint."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    images = torch.rand(count, 3, size, size, generator=generator) * 90
    for index, label in enumerate(labels.tolist()):
        width = size // classes
        images[index, :, :, label * width : (label + 1) * width] += 120
    images[:, 0] += tint
    return Split(images.clamp(0, 255).to(torch.uint8), labels)


def make_stream(domains: int = 2, classes: int = 3, count: int = 24) -> Stream:
    return Stream(
        "stripes",
        tuple(f"class {c}" for c in range(classes)),
        tuple(
            Domain(
                f"domain {d}",
                train=make_split(count, classes, 40.0 * d, 10 * d + 1),
                val=make_split(12, classes, 40.0 * d, 10 * d + 2),
                test=make_split(12, classes, 40.0 * d, 10 * d + 3),
            )
            for d in range(domains)
        ),
    )


@pytest.fixture(scope="session")
def stripes() -> Stream:
    """Two domains of three classes, 24 training images each."""
    return make_stream()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real images and weights, where there is one."""
    root = Path(os.environ.get("SODAP_SHARED", Path(__file__).parents[2] / "shared"))
    if not (root / "weights").is_dir():
        pytest.skip(f"no real weights and images at {root} (set SODAP_SHARED)")
    return root
