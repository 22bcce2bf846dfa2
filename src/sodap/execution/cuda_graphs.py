"""CUDA graphs: GPU work that is captured once and replayed with a single launch.

A pass through a ViT launches hundreds of small kernels, and the host cannot launch them as fast as
the GPU executes them. A replay runs the same kernels on the same addresses. Registered generators
advance as they would without a graph.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Signature = tuple[tuple[torch.Size, torch.dtype], ...]
"""Shape and dtype of every input."""

WARM_UP_CALLS = 1
"""Ordinary calls with a signature before it is captured. Libraries select kernels and allocate
workspaces in the first one, and work that is done only once is not worth a capture."""


class CannotCaptureError(RuntimeError):
    """The work waits for the host, or does something else that a CUDA graph cannot contain."""


class GraphedCallable(Generic[T]):
    """A function of tensors that is captured as one CUDA graph per input signature.

    On a replay the inputs are copied to the addresses that the graph reads. Whatever else the
    function reads must keep its address. A replay always returns the same tensors, so a result is
    valid until the next call. What cannot be captured runs without a graph, or raises
    `CannotCaptureError` if `strict`. Without a GPU, or if not `enabled`, the function is called
    directly.

    A graph holds much GPU memory. `function` should therefore not refer to the owner of this
    object: a reference cycle would keep the memory until the garbage collector runs.
    """

    def __init__(
        self,
        function: Callable[..., T],
        device: torch.device,
        *,
        generators: Sequence[torch.Generator] = (),
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        self.function = function
        self.generators = generators
        self.strict = strict
        on_gpu = enabled and device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.calls: Counter[Signature] = Counter()
        self.graphs: dict[Signature, _Graph[T]] = {}

    @property
    def active(self) -> bool:
        """Whether calls are captured: on a GPU, as long as no capture has failed."""
        return self.stream is not None

    def __call__(self, *inputs: Tensor) -> T:
        if self.stream is None:
            return self.function(*inputs)
        signature = tuple((each.shape, each.dtype) for each in inputs)
        if signature not in self.graphs:
            if self.calls[signature] < WARM_UP_CALLS:
                self.calls[signature] += 1
                return self._warm_up(self.stream, inputs)
            try:
                self.graphs[signature] = _Graph(self, self.stream, inputs)
            except CannotCaptureError:
                if self.strict:
                    raise
                self.stream = None
                return self.function(*inputs)
        return self.graphs[signature].replay(inputs)

    def _warm_up(self, stream: torch.cuda.Stream, inputs: Sequence[Tensor]) -> T:
        """Call the function on the capture stream: gradients accumulate on their first stream."""
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = self.function(*inputs)
        current.wait_stream(stream)
        return result


class _Graph(Generic[T]):
    """The graph of one input signature."""

    def __init__(
        self, owner: GraphedCallable[T], stream: torch.cuda.Stream, inputs: Sequence[Tensor]
    ) -> None:
        self.inputs = [each.clone() for each in inputs]
        self.graph = torch.cuda.CUDAGraph()
        for generator in owner.generators:
            self.graph.register_generator_state(generator)
        # Replays run one after another, so the graphs of all signatures can share their memory.
        pools = [other.graph.pool() for other in owner.graphs.values()]
        try:
            with _capture(self.graph, stream, pools[0] if pools else None):
                self.result = owner.function(*self.inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotCaptureError(str(error)) from error

    def replay(self, inputs: Sequence[Tensor]) -> T:
        for target, source in zip(self.inputs, inputs, strict=True):
            target.copy_(source, non_blocking=True)
        self.graph.replay()
        return self.result


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> Iterator[None]:
    """Capture into `graph` like `torch.cuda.graph`, but without synchronising the device.

    `torch.cuda.graph` first waits until the GPU is idle and releases all cached memory. A step is
    captured in the middle of an epoch, while the GPU still executes the steps before.
    """
    _release_cache_if_short(stream.device)
    # In torch 2.11 all graphs read the state of a generator from one address, which is written when
    # a capture begins. Waiting on the stream keeps that write behind the replays under way.
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with _garbage_collection_disabled(), torch.cuda.stream(stream):
        # thread_local: another thread may go on copying the next batches.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()
    current.wait_stream(stream)


def _release_cache_if_short(device: torch.device) -> None:
    """Release cached memory if less is free than the process has reserved.

    A graph cannot use the cache. The work has run before within what is reserved now, so the graph
    needs at most that much again.
    """
    free, _ = torch.cuda.mem_get_info(device)
    if free < torch.cuda.memory_reserved(device):
        torch.cuda.empty_cache()


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Keep Python from freeing GPU objects during a capture, which would invalidate it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def pad_rows(rows: Tensor, size: int) -> Tensor:
    """Append rows of zeros to `rows [N, ...]` up to `size` rows.

    The last, smaller batch of a split can then use the graph of the full ones.
    """
    missing = size - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing > 0 else rows
