"""1.5-entmax as one Triton kernel a direction, for float32 on a GPU.

The operations are those of `sodap.prompting.entmax` and `sodap.prompting.segments`, on a row that
never leaves the registers. Importing this file fails where Triton is missing.
"""

# mypy: allow-untyped-decorators

from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sodap.prompting.entmax import newton_steps


@triton.jit
def _larger(x: tl.tensor, floor: tl.tensor) -> tl.tensor:
    """``max(x, floor)``, where NaN stays NaN as in torch."""
    return tl.maximum(x, floor, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _solve(
    scores: tl.tensor,
    weights: tl.tensor,
    slots: tl.tensor,
    leads: tl.tensor,
    size: tl.tensor,
    score_stride: tl.tensor,
    factor: tl.tensor,
    segmented: tl.constexpr,
    steps: tl.constexpr,
    block: tl.constexpr,
    seats: tl.constexpr,
) -> None:
    """The weights of row ``program 0``: all of it, or the segments that begin in some columns.

    Those of ``program 1`` are the next ``seats``: as many programs as there may be segments would
    mostly find that none begins with them.
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
    size: tl.tensor,
    grad_row: tl.tensor,
    grad_column: tl.tensor,
    factor: tl.tensor,
    segmented: tl.constexpr,
    block: tl.constexpr,
    seats: tl.constexpr,
) -> None:
    """The gradient of the scores, for the same row and segments as in `_solve`."""
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
"""Columns that one program searches for the beginnings of segments."""


class _Kernel:
    """A Triton kernel that is found again by its arguments faster than Triton finds it.

    Triton sorts all arguments anew at every launch, which takes longer than the kernel runs.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.compiled: dict[Hashable, Any] = {}

    def __call__(self, grid: tuple[int, int, int], block: int, *arguments: Any) -> None:
        """Launch it; all arguments in their order, the first of them a tensor on the device."""
        device = arguments[0].device
        # What Triton compiles a program for: the numbers, and how the tensors lie in memory.
        key = device, *map(_trait, arguments)
        compiled = self.compiled.get(key)
        elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
        with torch.cuda.device(device) if elsewhere else nullcontext():
            if compiled is not None:
                compiled[grid](*arguments)
            else:
                self.compiled[key] = self.function[grid](
                    *arguments, num_warps=_warps(block), enable_fp_fusion=True
                )


def _trait(argument: Tensor | float) -> Hashable:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return None if isinstance(argument, float) else argument


_solve_rows, _differentiate_rows = _Kernel(_solve), _Kernel(_differentiate)


def forward(
    scores: Tensor, temperature: float, slots: Tensor | None = None, leads: Tensor | None = None
) -> Tensor:
    """Weights like ``scores [..., N]``: one distribution a row, or one in each segment of it."""
    size = scores.shape[-1]
    rows = scores.reshape(-1, size)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    weights = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    segmented, block = slots is not None, triton.next_power_of_2(size)
    _solve_rows(
        (len(rows), triton.cdiv(size, _SEATS) if segmented else 1, 1),
        block,
        rows,
        weights,
        slots if segmented else rows,
        leads if segmented else rows,
        size,
        rows.stride(0),
        0.5 / temperature,
        segmented,
        newton_steps(size, scores.dtype),
        block,
        _SEATS,
    )
    return weights


def backward(
    weights: Tensor,
    grad: Tensor,
    temperature: float,
    slots: Tensor | None = None,
    leads: Tensor | None = None,
) -> Tensor:
    """What the scores of `forward` get from ``grad``; all ``[..., N]``."""
    size = weights.shape[-1]
    rows, grads = weights.reshape(-1, size), grad.reshape(-1, size)
    found = torch.empty_like(rows)
    segmented, block = slots is not None, triton.next_power_of_2(size)
    _differentiate_rows(
        (len(rows), triton.cdiv(size, _SEATS) if segmented else 1, 1),
        block,
        rows,
        grads,
        found,
        slots if segmented else rows,
        leads if segmented else rows,
        size,
        grads.stride(0),
        grads.stride(1),
        1 / temperature,
        segmented,
        block,
        _SEATS,
    )
    return found.view(weights.shape)


def _warps(block: int) -> int:
    """A row of up to 256 scores is summed within a warp, without a detour over shared memory."""
    return max(1, block // 256)
