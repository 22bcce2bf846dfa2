"""What half precision means beyond autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric


@contextmanager
def tensor_cores(fabric: Fabric) -> Iterator[None]:
    """Where a network runs in bfloat16, products that stay in float32 may be rounded to TF32.

    That is finer than what they are fed with, and several times as fast. In float32 runs nothing
    changes, and what is solved in closed form or kept as statistics is computed outside.
    """
    with fabric.autocast():
        half = fabric.device.type == "cuda" and torch.is_autocast_enabled("cuda")
    if not half:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
