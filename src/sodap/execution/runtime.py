"""The one object that knows where and how a method computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch

from sodap.errors import SodapError
from sodap.execution.eager import compiled_only_if
from sodap.execution.observations import GraphedObservations
from sodap.execution.timing import DeviceTimer
from sodap.methods.base import Method, Observations
from sodap.streams import BatchLoader, Split

AnyMethod = TypeVar("AnyMethod", bound=Method)


class Runtime:
    """Device, precision, compilation and CUDA graphs of a learner.

    Args:
        device: `auto` (a GPU if there is one), `cpu` or `cuda`.
        precision: `auto` (`bf16` on a GPU, `fp32` on a CPU), `bf16` or `fp32`.
        cuda_graphs: capture training steps and predictions on a GPU as CUDA graphs.
    """

    def __init__(
        self, device: str = "auto", precision: str = "auto", *, cuda_graphs: bool = True
    ) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise SodapError("device=cuda was asked for, but PyTorch sees no GPU here")
        if device not in ("cpu", "cuda"):
            raise SodapError(f"no device is called '{device}'; give auto, cpu or cuda")
        if precision == "auto":
            precision = "bf16" if device == "cuda" else "fp32"
        if precision not in ("bf16", "fp32"):
            raise SodapError(f"no precision is called '{precision}'; give auto, bf16 or fp32")
        self.device = torch.device(device, 0) if device == "cuda" else torch.device(device)
        self.half = precision == "bf16"
        self.cuda_graphs = cuda_graphs and device == "cuda"
        self.half_on_gpu = self.half and device == "cuda"

    def place(self, method: AnyMethod, *, compile: bool = False) -> AnyMethod:
        """Move a method to the device, in its precision, and compile it if asked."""
        method.to(self.device)
        if self.half_on_gpu:
            method.backbone.round_weights(torch.bfloat16)
        if compile:
            method.compile_parts()
        return method

    def graphs(self, method: Method) -> bool:
        """Whether work of this method is captured as CUDA graphs."""
        return self.cuda_graphs and method.graph_safe

    # ------------------------------------------------------------------ contexts

    def autocast(self) -> AbstractContextManager[None]:
        """Run the forward pass of the backbone in the runtime's precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    @contextmanager
    def tf32(self, method: Method) -> Iterator[None]:
        """Round float32 matrix products to TF32 where the network runs in bf16 on a GPU.

        TF32 is finer than the bf16 inputs of these products, and several times as fast as float32.
        It is not used for methods in closed form, whose terms cancel. Statistics are computed
        outside this context.
        """
        if not (self.half_on_gpu and method.learns_by_gradient):
            yield
            return
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    @contextmanager
    def stage_context(self) -> Iterator[None]:
        """Context of `begin_stage` and `end_stage`: autocast, no compilation, no TF32.

        Without autocast's cache, which would keep using weights that a method has overwritten.
        """
        autocast = torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.half, cache_enabled=False
        )
        with autocast, compiled_only_if(False):
            yield

    # ------------------------------------------------------------------ work on the device

    def observe(
        self, method: Method, split: Split, batch_size: int, order: torch.Generator | None = None
    ) -> Observations:
        """Prepared images of a split, without augmentation, shuffled by `order` if given."""
        loader = BatchLoader(split, batch_size, self.device, method.backbone.prepare, order)
        if self.graphs(method):
            return GraphedObservations(loader, self.device)
        return Observations(loader)

    def timer(self) -> DeviceTimer:
        """Start to time what the device does from now on."""
        return DeviceTimer(self.device)

    def release_cache(self) -> None:
        """Give GPU memory that is cached but unused back, for images and other processes."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
