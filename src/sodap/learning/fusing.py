"""Where torch.compile pays off: a program takes seconds to make, and every shape wants its own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def fused(worth_it: bool) -> AbstractContextManager[object]:
    """Without worth, what was handed to torch.compile runs as it was written.

    Full batches are worth it: they come by the thousand. The last one of an epoch, a single image
    to predict, or one look at a domain are over before they would be compiled.
    """
    if worth_it:
        return nullcontext()
    plainly: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return plainly
