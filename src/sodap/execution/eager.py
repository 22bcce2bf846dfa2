"""Switch off compilation and kernel planning for work that is too short to repay them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

import torch
from torch.backends import cuda


@contextmanager
def compiled_only_if(worth_it: bool) -> Iterator[None]:
    """If not `worth_it`, run compiled functions eagerly and without cuDNN attention.

    Full batches are worth it: there are thousands of them. The last batch of an epoch, a single
    image or one pass over a domain would finish sooner than their compilation. cuDNN attention is
    fast but plans anew for every batch size, which takes many times as long as a pass.
    """
    if worth_it:
        yield
        return
    _eager.enter()
    try:
        yield
    finally:
        _eager.leave()


class _EagerMode:
    """Both flags are process-wide; the first thread sets them, the last restores them."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.threads = 0
        self.restore = ExitStack()

    def enter(self) -> None:
        with self.lock:
            self.threads += 1
            if self.threads == 1:
                enabled = cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
                self.restore.callback(cuda.enable_cudnn_sdp, enabled)
                cuda.enable_cudnn_sdp(False)
                self.restore.enter_context(torch.compiler.set_stance("force_eager"))

    def leave(self) -> None:
        with self.lock:
            self.threads -= 1
            if self.threads == 0:
                self.restore.close()


_eager = _EagerMode()
