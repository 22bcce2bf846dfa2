"""1.5-entmax as two Triton kernels, forward and backward, for float32 on a GPU.

The operations are those of `sodap.prompting.fast.entmax` and `sodap.prompting.fast.segments`, on a
row that stays in registers. Importing this file fails where Triton is missing.
"""

# mypy: allow-untyped-decorators

from collections.abc import Hashable
from functools import reduce
from operator import or_
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sodap.prompting.fast.entmax import newton_steps


@triton.jit
def _larger(x: tl.tensor, floor: tl.tensor) -> tl.tensor:
    """``max(x, floor)`` that propagates NaN, as in torch."""
    return tl.maximum(x, floor, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _solve(
    scores: tl.tensor,
    weights: tl.tensor,
    slots: tl.tensor,
    leads: tl.tensor,
    factor: tl.tensor,
    size: tl.tensor,
    score_stride: tl.tensor,
    segmented: tl.constexpr,
    steps: tl.constexpr,
    seats: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Weights of one row (program 0): the whole row, or the segments that begin in some columns.

    Program 1 counts blocks of ``seats`` columns. One program per column would mostly find that no
    segment begins there.
    """
    row = tl.program_id(0).to(tl.int64)
    scores += row * score_stride
    weights += row * size
    column = tl.arange(0, block)
    inside = column < size
    if segmented:
        slot = tl.load(slots + column, mask=inside, other=-1)
        first = tl.program_id(1) * seats
        if first == 0:
            tl.store(weights + column, 0.0, mask=slot == size)  # in no segment
        for seat in range(seats):
            here = first + seat
            if tl.load(leads + here, mask=here < size, other=0) != 0:
                members = slot == tl.load(slots + here)
                _solve_members(scores, weights, column, members, factor, steps)
    else:
        _solve_members(scores, weights, column, inside, factor, steps)


@triton.jit
def _solve_members(
    scores: tl.tensor,
    weights: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    factor: tl.tensor,
    steps: tl.constexpr,
) -> None:
    score = tl.load(scores + column, mask=inside, other=float("-inf"))
    z = _larger((score - tl.max(score, 0)) * factor, -1.0)
    count = tl.sum(inside.to(tl.float32), 0)
    mean = tl.sum(tl.where(inside, z, 0.0), 0) / count
    tau = _larger(mean - 1.0 / tl.sqrt_rn(count), -1.0)
    for _ in range(steps):
        above = _larger(z - tau, 0.0)
        length = tl.sqrt_rn(tl.sum(above * above, 0))
        tau += (length - 1.0) * length / tl.sum(above, 0)
    above = _larger(z - tau, 0.0)
    tl.store(weights + column, above * above, mask=inside)


@triton.jit
def _differentiate(
    weights: tl.tensor,
    grads: tl.tensor,
    found: tl.tensor,
    slots: tl.tensor,
    leads: tl.tensor,
    factor: tl.tensor,
    size: tl.tensor,
    grad_row: tl.tensor,
    grad_column: tl.tensor,
    segmented: tl.constexpr,
    seats: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Gradient of the scores, for the same row and segments as in `_solve`."""
    row = tl.program_id(0).to(tl.int64)
    weights += row * size
    grads += row * grad_row
    found += row * size
    column = tl.arange(0, block)
    inside = column < size
    if segmented:
        slot = tl.load(slots + column, mask=inside, other=-1)
        first = tl.program_id(1) * seats
        if first == 0:
            tl.store(found + column, 0.0, mask=slot == size)
        for seat in range(seats):
            here = first + seat
            if tl.load(leads + here, mask=here < size, other=0) != 0:
                members = slot == tl.load(slots + here)
                _differentiate_members(weights, grads, found, column, members, grad_column, factor)
    else:
        _differentiate_members(weights, grads, found, column, inside, grad_column, factor)


@triton.jit
def _differentiate_members(
    weights: tl.tensor,
    grads: tl.tensor,
    found: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    grad_column: tl.tensor,
    factor: tl.tensor,
) -> None:
    weight = tl.load(weights + column, mask=inside, other=0.0)
    grad = tl.load(grads + column * grad_column, mask=inside, other=0.0)
    slope = tl.sqrt_rn(weight)
    mean = tl.sum(slope * grad, 0) / tl.sum(slope, 0)
    tl.store(found + column, slope * (grad - mean) * factor, mask=inside)


_SEATS = 16
"""Columns that one program searches for the first columns of segments."""


class _Kernel:
    """A Triton kernel with a launch that is cheaper than Triton's own.

    At every launch Triton sorts all arguments, queries the driver about each tensor and calls its
    profiler hooks, which takes longer than the kernel runs. Here the types of a kernel's tensors
    never change, so the integer arguments alone identify the compiled program.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.programs: dict[Hashable, Any] = {}

    def __call__(
        self, grid: tuple[int, int], tensors: tuple[Tensor, ...], factor: float, *numbers: int
    ) -> None:
        """Launch the kernel; the last of ``numbers`` is the block size."""
        device = tensors[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(grid, tensors, factor, *numbers)
        addresses = [each.data_ptr() for each in tensors]
        # Triton specialises on the integers, and on tensors aligned to 16 bytes.
        key = device, numbers if reduce(or_, addresses) % 16 == 0 else None
        program = self.programs.get(key)
        if program is not None:
            _, launch, handle, size = program
            stream = torch._C._cuda_getCurrentRawStream(device)
            launch(*grid, 1, stream, handle, size, None, None, None, *addresses, factor, *numbers)
            return None
        compiled = self.function[*grid, 1](
            *tensors, factor, *numbers, num_warps=_warps(numbers[-1]), enable_fp_fusion=True
        )
        if compiled is not None and key[1] is not None:  # None in Triton's interpreter
            handle, size = compiled.function, compiled.packed_metadata
            self.programs[key] = compiled, compiled.run, handle, size  # unloaded once unreferenced
        return None


_solve_rows, _differentiate_rows = _Kernel(_solve), _Kernel(_differentiate)


def forward(
    scores: Tensor, temperature: float, slots: Tensor | None = None, leads: Tensor | None = None
) -> Tensor:
    """Compute weights of ``scores [..., N]``: one distribution per row, or per segment of it."""
    rows = _rows(scores)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    weights = torch.empty_like(rows, memory_format=torch.contiguous_format)
    height, size = rows.shape
    segmented = slots is not None
    where = (rows, rows) if slots is None or leads is None else (slots, leads)
    _solve_rows(
        (height, -(-size // _SEATS) if segmented else 1),
        (rows, weights, *where),
        0.5 / temperature,
        size,
        rows.stride(0),
        segmented,
        newton_steps(size, scores.dtype),
        _SEATS,
        _block(size),
    )
    return weights if scores.ndim == 2 else weights.view(scores.shape)


def backward(
    weights: Tensor,
    grad: Tensor,
    temperature: float,
    slots: Tensor | None = None,
    leads: Tensor | None = None,
) -> Tensor:
    """Compute the gradient of the scores of `forward` from ``grad``; all ``[..., N]``."""
    rows, grads = _rows(weights), _rows(grad)
    found = torch.empty_like(rows)
    height, size = rows.shape
    segmented = slots is not None
    where = (rows, rows) if slots is None or leads is None else (slots, leads)
    _differentiate_rows(
        (height, -(-size // _SEATS) if segmented else 1),
        (rows, grads, found, *where),
        1 / temperature,
        size,
        *grads.stride(),
        segmented,
        _SEATS,
        _block(size),
    )
    return found if weights.ndim == 2 else found.view(weights.shape)


def _rows(batch: Tensor) -> Tensor:
    """Reshape ``[..., N]`` to ``[B, N]`` unless it has that shape already."""
    return batch if batch.ndim == 2 else batch.reshape(-1, batch.shape[-1])


def _block(size: int) -> int:
    """Smallest power of two that holds a row; Triton's own function takes microseconds."""
    return 1 << (size - 1).bit_length()


def _warps(block: int) -> int:
    """Number of warps: rows of up to 256 scores are summed in one warp, without shared memory."""
    return max(1, block // 256)
