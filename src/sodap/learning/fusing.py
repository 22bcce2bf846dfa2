"""What pays off for thousands of batches of one size, and would delay a single one by seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

import torch
from torch.backends import cuda


@contextmanager
def fused(worth_it: bool) -> Iterator[None]:
    """Without worth, what was handed to torch.compile runs as it was written, and nobody plans.

    Full batches are worth it: they come by the thousand. The last one of an epoch, a single image
    to predict, or one look at a domain are over before they would be compiled. Nor does cuDNN
    attend to them: it is faster than other ways, but plans for every size of a batch anew, and that
    takes many times as long as a whole pass.
    """
    if worth_it:
        yield
    else:
        _plainly.enter()
        try:
            yield
        finally:
            _plainly.leave()


class _Plainly:
    """Both switches are the process's: the first of several threads turns them, the last back."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = 0
        self.way_back = ExitStack()

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                before = cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
                self.way_back.callback(cuda.enable_cudnn_sdp, before)
                cuda.enable_cudnn_sdp(False)
                self.way_back.enter_context(torch.compiler.set_stance("force_eager"))

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.way_back.close()


_plainly = _Plainly()
