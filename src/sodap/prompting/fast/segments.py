"""Entmax over several segments of a row at once.

Segments are told apart by the values of tensors, not by shapes: a pool that grows by one set after
the other runs the same kernels on the same shapes at every stage.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.prompting.fast.entmax import entmax, gradient, kernels, slope_of

FEW = 4
"""Largest number of segments that a CPU solves one by one; more are solved all at once."""


class Segments(NamedTuple):
    """Consecutive segments of N columns; the columns behind the last segment are in none."""

    slot: Tensor  # [N], segment of each column; N for a column in no segment
    first: Tensor  # [N], first column of the segment of each column
    end: Tensor  # [N], column after the last one of that segment
    leads: Tensor  # [N] bool, whether a column is the first of its segment
    spans: tuple[slice, ...] | None = None  # on a CPU with few segments: their columns

    @staticmethod
    def of(sizes: Sequence[int], width: int, device: torch.device) -> "Segments":
        """Divide the first ``sum(sizes)`` of ``width`` columns into segments of these sizes."""
        ends = list(accumulate((*sizes, width - sum(sizes))))
        starts = [0, *ends[:-1]]
        lengths = torch.tensor((*sizes, width - sum(sizes)))

        def per_column(values: Sequence[int]) -> Tensor:
            return torch.tensor(values).repeat_interleave(lengths).to(device)

        slot, first = per_column((*range(len(sizes)), width)), per_column(starts)
        leads = (first == torch.arange(width, device=device)) & (slot < width)
        spans = tuple(map(slice, starts, ends))[: len(sizes)]
        one_by_one = device.type == "cpu" and len(sizes) <= FEW
        return Segments(slot, first, per_column(ends), leads, spans if one_by_one else None)

    @property
    def members(self) -> Tensor:
        """Columns that are in a segment, as a mask ``[N]``."""
        return self.slot < self.slot.shape[0]

    def sums(self, rows: Tensor) -> Tensor:
        """Sum over the segment of each column: ``[..., N] -> [..., N]`` in float64.

        By running sums, which in float64 lose nothing that float32 could show. Adding by index
        would depend on the order in which a GPU adds.
        """
        running = F.pad(rows.double().cumsum(-1), (1, 0))
        return running.index_select(-1, self.end) - running.index_select(-1, self.first)

    def tops(self, rows: Tensor) -> Tensor:
        """Maximum over the segment of each column: ``[B, N] -> [B, N]``."""
        slots = self.slot.expand_as(rows)
        tops = rows.new_full((rows.shape[0], rows.shape[1] + 1), -torch.inf)
        return tops.scatter_reduce_(1, slots, rows, "amax").gather(1, slots)


class Competition(NamedTuple):
    """Sets of columns of which each competes with all sets before it.

    Every set gets a segment with copies of its own columns and of all earlier ones. The weights of
    its own columns are kept, those of the others only serve to take weight from it.
    """

    ends: tuple[int, ...]  # number of columns of each segment, which are the first ones of N
    source: Tensor  # [K], column that each column of the segments is a copy of
    own: Tensor  # [N], where the kept weight of each column is; K for a column in no set
    segments: Segments

    @staticmethod
    def of(sizes: Sequence[int], width: int, device: torch.device) -> "Competition":
        """Sets of these sizes among the first columns of ``width``."""
        ends = list(accumulate(sizes))
        copies = list(accumulate(ends))  # end of each segment
        own = [torch.arange(copy - size, copy) for copy, size in zip(copies, sizes, strict=True)]
        own.append(torch.full((width - ends[-1],), copies[-1]))
        source = torch.cat([torch.arange(end) for end in ends])
        segments = Segments.of(ends, copies[-1], device)
        return Competition(tuple(ends), source.to(device), torch.cat(own).to(device), segments)

    def spread(self, columns: Tensor) -> Tensor:
        """Copy columns to the segments: ``[B, N] -> [B, K]``."""
        return columns.index_select(-1, self.source)

    def kept(self, copies: Tensor) -> Tensor:
        """Each column's own copy: ``[B, K] -> [B, N]``; 0 for columns in no set."""
        return F.pad(copies, (0, 1)).index_select(-1, self.own)

    def gradient(self, weights: Tensor, grad: Tensor, alpha: float, temperature: float) -> Tensor:
        """Gradient of the scores ``[B, N]`` from that of the kept weights ``[B, N]``.

        ``weights [B, K]`` are those of all copies.
        """
        copies = F.pad(torch.zeros_like(weights), (0, 1)).index_copy(-1, self.own, grad)
        found = entmax_gradient(weights, copies[:, :-1], self.segments, alpha, temperature)
        # Added segment by segment: adding by index would depend on the order in which a GPU adds.
        parts = zip(self.ends, found.split_with_sizes(self.ends, -1), strict=True)
        return torch.stack([F.pad(part, (0, grad.shape[-1] - end)) for end, part in parts]).sum(0)


def segmented_entmax(
    scores: Tensor, segments: Segments, alpha: float, *, temperature: float = 1.0
) -> Tensor:
    """α-entmax of ``scores / temperature [B, N]`` within every segment; softmax for α = 1.

    Columns in no segment get weight zero and no gradient.
    """
    weights: Tensor
    if segments.spans is None:
        weights = _SegmentedEntmax.apply(scores, *segments[:4], alpha, temperature)
        return weights
    weights = torch.zeros_like(scores)
    for span in segments.spans:
        own = scores[:, span]
        weights[:, span] = (
            (own / temperature).softmax(-1)
            if alpha == 1
            else entmax(own, alpha, temperature=temperature)
        )
    return weights


class _SegmentedEntmax(torch.autograd.Function):
    """`sodap.prompting.fast.entmax` with one threshold per segment."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, *options: Any) -> Tensor:
        segments, alpha, temperature = Segments(*options[:-2]), options[-2], options[-1]
        weights = _solve(scores, segments, alpha, temperature)
        ctx.save_for_backward(weights, *segments[:4])
        ctx.alpha, ctx.temperature = alpha, temperature
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, *segments = ctx.saved_tensors
        found = entmax_gradient(weights, grad, Segments(*segments), ctx.alpha, ctx.temperature)
        return found, *(None,) * (len(segments) + 2)


def _solve(scores: Tensor, segments: Segments, alpha: float, temperature: float) -> Tensor:
    """Weights ``[B, N]`` of ``scores [B, N]``, without a gradient."""
    fused = kernels(scores, alpha)
    if fused is not None:
        found: Tensor = fused.forward(scores, temperature, segments.slot, segments.leads)
        return found
    # Columns in no segment must not reach the others through a sort or a running sum.
    z = torch.where(segments.members, scores - segments.tops(scores), 0.0)
    if alpha == 1:
        weights = z.div_(temperature).exp_()
        weights = weights / segments.sums(weights)
    else:
        z = z.mul_((alpha - 1) / temperature).clamp_(min=-1)
        if alpha == 1.5:
            tau = _thresholds_of_squares(z, segments).to(z.dtype)
            weights = z.sub_(tau).relu_().square_()
        else:
            weights = (z - _thresholds_by_bisection(z, segments, alpha)).relu_()
            weights = weights.pow_(1 / (alpha - 1))
            weights = weights / segments.sums(weights)
    return torch.where(segments.members, weights.to(scores.dtype), 0.0)


def entmax_gradient(
    weights: Tensor, grad: Tensor, segments: Segments, alpha: float, temperature: float
) -> Tensor:
    """Gradient of the scores from that of the weights; all ``[B, N]``."""
    fused = None if torch.is_grad_enabled() else kernels(weights, alpha)
    if fused is not None:
        found: Tensor = fused.backward(weights, grad, temperature, segments.slot, segments.leads)
        return found
    if segments.spans is not None:
        found = torch.zeros_like(weights)
        for span in segments.spans:
            found[:, span] = gradient(weights[:, span], grad[:, span], alpha, temperature)
        return found
    slope = slope_of(weights, alpha)
    product = slope * grad
    products, slopes = segments.sums(torch.stack([product, slope]))
    # The slopes of a segment sum to at least 1; those of no segment are all 0.
    mean = (products / slopes.clamp(min=0.5)).to(slope.dtype)
    return product.addcmul(slope, mean, value=-1) / temperature


def _thresholds_of_squares(z: Tensor, segments: Segments) -> Tensor:
    """τ with ``Σ [z - τ]_+² = 1`` in each segment (α = 1.5): ``[B, N] -> [B, N]`` in float64.

    Each column gets the threshold of its own segment. z lies in [-1, 0].
    """
    # Segments are moved two apart, so that one sort orders each of them in its place.
    apart = 2.0 * segments.slot
    ordered = (z.double() - apart).sort(-1, descending=True).values + apart
    rank = 1 + torch.arange(z.shape[-1], device=z.device) - segments.first
    running = F.pad(torch.stack([ordered, ordered.square()]).cumsum(-1), (1, 0))
    total, squares = running[..., 1:] - running.index_select(-1, segments.first)
    # The k best form the support while Σ_{i<=k} (z_i - z_k)² < 1; this sum grows with k.
    spread = squares + ordered * (rank * ordered - 2 * total)
    counted = F.pad((spread < 1).cumsum(-1), (1, 0))
    size = counted.index_select(-1, segments.end) - counted.index_select(-1, segments.first)
    last = (segments.first + size - 1).clamp_(min=0)  # for NaN, whose size is 0
    mean = total.gather(-1, last) / size
    left = 1 - squares.gather(-1, last) + size * mean.square()  # 1 minus the variance, times size
    tau: Tensor = mean - (left / size).relu_().sqrt_()
    return tau


def _thresholds_by_bisection(z: Tensor, segments: Segments, alpha: float) -> Tensor:
    """τ with ``Σ [z - τ]_+ ^ (1/(α-1)) = 1`` in each segment: ``[B, N] -> [B, N]``."""
    low = torch.full_like(z, -1)
    width = 1 - float(z.shape[-1]) ** (1 - alpha)
    for _ in range(60 if z.dtype == torch.float64 else 30):
        width /= 2
        mass = segments.sums((z - (low + width)).clamp(min=0) ** (1 / (alpha - 1)))
        low = torch.where(mass >= 1, low + width, low)
    return low
