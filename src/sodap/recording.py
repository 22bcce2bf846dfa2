"""Work on a GPU that is recorded once, as a CUDA graph, and then replayed in a single launch.

A pass through a ViT is hundreds of small launches, and the processor cannot give them out as fast
as the GPU works them off. A replay is the same kernels on the same numbers, generators included.
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
Kind = tuple[tuple[torch.Size, torch.dtype], ...]
"""The shape of every input, and what its numbers are."""

WARM_UP = 1
"""How often work of one shape is launched anew before it is recorded: libraries choose their
kernels and memory in the meantime, and what is done only once is not worth more."""


class CannotRecordError(RuntimeError):
    """The work asks the host what to do next, or does something else that no recording may."""


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> Iterator[None]:
    """Collect in `graph` what is launched, as torch.cuda.graph does, but in the midst of work.

    That one first waits until the GPU has nothing to do, and gives back all memory in reserve. The
    second step of an epoch, or its last, is recorded while the GPU goes on with those before.
    """
    _make_room(stream.device)
    # With torch 2.11 all recordings read the state of a generator at one place, which is set anew
    # where one begins: not before the replays under way have read it. The host waits for nothing.
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    with _no_garbage_collection(), torch.cuda.stream(stream):
        # Other threads may go on: one of them collects the batches to come.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()
    here.wait_stream(stream)


def _make_room(device: torch.device) -> None:
    """Memory in reserve is no use to a recording, so it is given back where memory is short.

    The work has run before, in what the process has taken by now: as much again will do.
    """
    free, _ = torch.cuda.mem_get_info(device)
    if free < torch.cuda.memory_reserved(device):
        torch.cuda.empty_cache()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Who lets go of memory or programs of a GPU during a recording may spoil it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Recorded(Generic[T]):
    """`work(*inputs)`: of tensors, and of whatever else it reads, as long as that stays in place.

    Inputs of a shape that has come `WARM_UP` times are copied to where the recording reads them.
    It answers with the same tensors every time, so an answer is good until the next call. What
    cannot be recorded is launched anew every time, or with `strict` an error.

    A recording holds on to much memory. So `work` should not refer to whoever holds it: in a circle
    both would stay until somebody collects garbage.
    """

    def __init__(
        self,
        work: Callable[..., T],
        device: torch.device,
        *,
        generators: Sequence[torch.Generator] = (),
        wanted: bool = True,
        strict: bool = False,
    ) -> None:
        self.work = work
        self.strict = strict
        self.generators = generators
        on_gpu = wanted and device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.launched: Counter[Kind] = Counter()
        self.recordings: dict[Kind, _Recording[T]] = {}

    def __call__(self, *inputs: Tensor) -> T:
        if self.stream is None:
            return self.work(*inputs)
        kind = tuple((each.shape, each.dtype) for each in inputs)
        if kind in self.recordings:
            return self.recordings[kind].replay(inputs)
        if self.launched[kind] < WARM_UP:
            self.launched[kind] += 1
            return self.launch(*inputs)
        try:
            self.recordings[kind] = _Recording(self, self.stream, inputs)
        except CannotRecordError:
            if self.strict:
                raise
            self.stream = None
            return self.work(*inputs)
        return self.recordings[kind].replay(inputs)

    @property
    def records(self) -> bool:
        """Whether there is a GPU to record for, and nothing so far that could not be recorded."""
        return self.stream is not None

    def launch(self, *inputs: Tensor) -> T:
        """Without a recording, but on its stream: gradients are added up where they began."""
        if self.stream is None:
            return self.work(*inputs)
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            answer = self.work(*inputs)
        here.wait_stream(self.stream)
        return answer


def filled(rows: Tensor, size: int) -> Tensor:
    """`rows [N, ...]` with as many rows of zeros behind them as make up `size`.

    Where a row depends on nothing but itself, one recording serves the last batch as well.
    """
    missing = size - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing > 0 else rows


class _Recording(Generic[T]):
    """The work for inputs of one shape."""

    def __init__(
        self, recorded: Recorded[T], stream: torch.cuda.Stream, inputs: Sequence[Tensor]
    ) -> None:
        self.inputs = [each.clone() for each in inputs]
        self.graph = torch.cuda.CUDAGraph()
        for generator in recorded.generators:
            self.graph.register_generator_state(generator)
        # Replays come one by one, so those of all kinds may compute in the same memory.
        pools = [other.graph.pool() for other in recorded.recordings.values()]
        try:
            with _capture(self.graph, stream, pools[0] if pools else None):
                self.answer = recorded.work(*self.inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotRecordError(str(error)) from error

    def replay(self, inputs: Sequence[Tensor]) -> T:
        for place, each in zip(self.inputs, inputs, strict=True):
            place.copy_(each, non_blocking=True)
        self.graph.replay()
        return self.answer
