"""What pays off for thousands of batches of one size, and would delay a single one by seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

UNPREPARED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Ways to attend that are ready for any size. cuDNN's is faster, but plans for every size anew, and
that takes many times as long as a whole pass."""


@contextmanager
def fused(worth_it: bool) -> Iterator[None]:
    """Without worth, what was handed to torch.compile runs as it was written, and nobody plans.

    Full batches are worth it: they come by the thousand. The last one of an epoch, a single image
    to predict, or one look at a domain are over before they would be compiled.
    """
    if worth_it:
        yield
    else:
        with torch.compiler.set_stance("force_eager"), sdpa_kernel(UNPREPARED):
            yield
