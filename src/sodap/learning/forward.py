"""Predictions batch by batch; on a GPU recorded once as a CUDA graph, like a training step."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from torch import Tensor

from sodap.learning.precision import tensor_cores
from sodap.methods import Method

WORTH_RECORDING = 3
"""So many full batches of one size; fewer are done before a recording would be."""


class Forward:
    """Logits `[B, C]` of uint8 images `[B, 3, H, W]`, for as long as the method stays as it is.

    `batches` says how many batches of `size` images are to come; without `record` each of them is
    launched anew. What a recording answers is good until the next call.
    """

    def __init__(
        self, method: Method, fabric: Fabric, size: int, batches: int, *, record: bool = True
    ) -> None:
        self.method = method.eval()
        self.fabric = fabric
        self.size = size
        self.records = (
            record
            and fabric.device.type == "cuda"
            and method.steps_alike
            and batches >= WORTH_RECORDING
            # A replay calls no module, so whoever listens to one would hear nothing.
            and not any(m._forward_hooks or m._forward_pre_hooks for m in method.modules())
        )
        self.images: Tensor | None = None

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        if not self.records or len(images) != self.size:
            return self.plain(images)
        if self.images is None and not self._record(images):
            return self.plain(images)
        assert self.images is not None
        self.images.copy_(images, non_blocking=True)
        self.graph.replay()
        return self.logits

    def plain(self, images: Tensor) -> Tensor:
        with tensor_cores(self.fabric, self.method), self.fabric.autocast():
            logits: Tensor = self.method(self.method.backbone.prepare(images))
        return logits

    def _record(self, images: Tensor) -> bool:
        """Whether it could be done: a method may ask the host for something on its way."""
        static = images.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.plain(static)  # libraries choose their kernels
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may go on: one of them collects the batches to come.
            with torch.cuda.graph(self.graph, stream=side, capture_error_mode="thread_local"):
                self.logits = self.plain(static)
        except RuntimeError:
            self.records = False
            return False
        self.images = static
        return True
