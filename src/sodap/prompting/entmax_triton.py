"""1.5-entmax as one Triton kernel a direction, for float32 on a GPU.

The operations are those of `sodap.prompting.entmax` and `sodap.prompting.segments`, on a row that
never leaves the registers. Importing this file fails where Triton is missing.
"""

# mypy: allow-untyped-decorators

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
) -> None:
    """The weights of row ``program 0``, in the segment that begins at column ``program 1``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < size
    begins = True
    if segmented:
        seat = tl.program_id(1)
        slot = tl.load(slots + seat)
        if slot == size:  # in no segment
            tl.store(weights + row * size + seat, 0.0)
        begins = tl.load(leads + seat) != 0
    if begins:
        if segmented:
            inside = inside & (tl.load(slots + column, mask=inside, other=-1) == slot)
        score = tl.load(scores + row * score_stride + column, mask=inside, other=float("-inf"))
        z = _larger((score - tl.max(score, 0)) * factor, -1.0)
        count = tl.sum(inside.to(tl.float32), 0)
        mean = tl.sum(tl.where(inside, z, 0.0), 0) / count
        tau = _larger(mean - 1.0 / tl.sqrt_rn(count), -1.0)
        for _ in range(steps):
            above = _larger(z - tau, 0.0)
            length = tl.sqrt_rn(tl.sum(above * above, 0))
            tau += (length - 1.0) * length / tl.sum(above, 0)
        above = _larger(z - tau, 0.0)
        tl.store(weights + row * size + column, above * above, mask=inside)


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
) -> None:
    """The gradient of the scores, for the same row and segment as in `_solve`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < size
    begins = True
    if segmented:
        seat = tl.program_id(1)
        slot = tl.load(slots + seat)
        if slot == size:
            tl.store(found + row * size + seat, 0.0)
        begins = tl.load(leads + seat) != 0
    if begins:
        if segmented:
            inside = inside & (tl.load(slots + column, mask=inside, other=-1) == slot)
        weight = tl.load(weights + row * size + column, mask=inside, other=0.0)
        grad = tl.load(grads + row * grad_row + column * grad_column, mask=inside, other=0.0)
        slope = tl.sqrt_rn(weight)
        mean = tl.sum(slope * grad, 0) / tl.sum(slope, 0)
        tl.store(found + row * size + column, slope * (grad - mean) * factor, mask=inside)


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
    with torch.cuda.device_of(scores):  # type: ignore[no-untyped-call]
        _solve[(len(rows), size if segmented else 1)](
            rows,
            weights,
            slots if segmented else rows,
            leads if segmented else rows,
            size,
            rows.stride(0),
            0.5 / temperature,
            segmented=segmented,
            steps=newton_steps(size, scores.dtype),
            block=block,
            num_warps=_warps(block),
            enable_fp_fusion=True,
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
    with torch.cuda.device_of(weights):  # type: ignore[no-untyped-call]
        _differentiate[(len(rows), size if segmented else 1)](
            rows,
            grads,
            found,
            slots if segmented else rows,
            leads if segmented else rows,
            size,
            grads.stride(0),
            grads.stride(1),
            1 / temperature,
            segmented=segmented,
            block=block,
            num_warps=_warps(block),
            enable_fp_fusion=True,
        )
    return found.view(weights.shape)


def _warps(block: int) -> int:
    """A row of up to 256 scores is summed within a warp, without a detour over shared memory."""
    return max(1, block // 256)
