"""Small streams and learners that many tests share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

# Tests run side by side, one thread each: two processes that share two cores with two threads
# each spend their time waiting for one another. Must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch
from torch import Tensor

from sodap.backbones import FrozenViT, build_backbone
from sodap.methods import Batch, Method, Observations
from sodap.streams import Stream
from sodap.testing import tiny_split, tiny_stream

# The same examples in every run, so that a failure comes from a change of the code. To search for
# new examples: pytest --hypothesis-profile=search. No deadlines: the machine may be busy.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("same")

GROUPS = (
    r"tests/methods/test_methods\.py::test_every_method_keeps\[(.+)-\w+\]",
    r"tests/reporting/test_(?:comparison_page|loading|pages_in_browser|run_page)\.py",
    r"tests/(cli/test_probe_cli|probing/test_interventions|runs/test_(?:evidence|probes|run))\.py",
)
"""Tests that run in one process, because they share fixtures that train models."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each of the `GROUPS` in one process.

    The mark `xdist_group` is meant for that, but pytest-xdist 3.8 ignores it under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            for group in GROUPS:
                if found := re.match(group, nodeid):
                    return f"{group} {found.groups()}"
            return nodeid

    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the slow tests, so that no process is left with one of them at the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


TINY_VIT: dict[str, Any] = {"backbone": "test_vit", "weights": "random", "image_size": 32}
"""Arguments of a learner with the smallest ViT of timm: a step takes a fifth of micro's time."""

TINY = [*(f"{key}={value}" for key, value in TINY_VIT.items()), "device=cpu"]
"""The same as settings of a run."""

make_split = tiny_split
make_stream = tiny_stream

NO_IMAGES = Observations([])


def make_batch(
    method: Method, images: Tensor, labels: Tensor, generator: torch.Generator | None = None
) -> Batch:
    """Prepared images and labels as the input of a training step without augmentation."""
    return Batch(images, labels, generator or torch.Generator(), method.backbone.prepare)


@pytest.fixture(scope="session")
def micro() -> FrozenViT:
    """The embedded backbone: width 128, six blocks, images of 32 pixels."""
    return build_backbone("micro")


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
