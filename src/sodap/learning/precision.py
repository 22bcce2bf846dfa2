"""What half precision means beyond autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric

from sodap.methods import Method


@contextmanager
def tensor_cores(fabric: Fabric, method: Method) -> Iterator[None]:
    """Where a network runs in bfloat16, products that stay in float32 may be rounded to TF32.

    That is finer than what they are fed with, and several times as fast. It is for methods that
    learn by gradient: what is solved in closed form has terms that cancel. In float32 runs nothing
    changes, and what is kept as statistics is computed outside.
    """
    with fabric.autocast():
        half = fabric.device.type == "cuda" and torch.is_autocast_enabled("cuda")
    if not (half and method.learns_by_gradient):
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
