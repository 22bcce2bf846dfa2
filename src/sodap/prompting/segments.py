"""Segments: one row of scores that holds several distributions side by side.

Which score belongs to which distribution is told by the values of a tensor, and how many there are
by no shape. A pool that grows by one set after the other keeps every step as it was.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.prompting.entmax import entmax, gradient, kernels, slope_of

FEW = 4
"""Segments that are solved one by one on a processor; of more, all at once in the same time."""


class Segments(NamedTuple):
    """A partition of N columns, in the form in which every sum over a segment needs it."""

    slot: Tensor  # [N], the segment of a column; N for a column in none
    order: Tensor  # [N], the columns sorted by segment
    first: Tensor  # [N], where the segment of a column begins in that order
    end: Tensor  # [N], and where it is over
    leads: Tensor  # [N] bool, the first column of each segment
    spans: tuple[slice, ...] | None = None  # on a processor: the few segments, if each is one span

    @staticmethod
    def of(ids: Tensor) -> "Segments":
        """From ``ids [N]`` in ``-1 .. N-1``, where -1 means: in no segment."""
        size = ids.shape[0]
        slot = torch.where(ids >= 0, ids, size)
        ordered, order = slot.sort(stable=True)
        first = torch.searchsorted(ordered, slot)
        end = torch.searchsorted(ordered, slot, right=True)
        leads = (order[first] == torch.arange(size, device=ids.device)) & (ids >= 0)
        asking_is_free = ids.device.type == "cpu" and not torch.compiler.is_compiling()
        return Segments(slot, order, first, end, leads, _spans(slot) if asking_is_free else None)

    def tensors(self) -> tuple[Tensor, ...]:
        return self[:5]

    @property
    def members(self) -> Tensor:
        """The columns that are in a segment, as a mask ``[N]``."""
        return self.slot < self.slot.shape[0]

    @property
    def sizes(self) -> Tensor:
        """How many columns the segment of each column has, ``[N]``."""
        return self.end - self.first

    def sums(self, rows: Tensor) -> Tensor:
        """For every column the sum over its segment: ``[..., N] -> [..., N]`` in float64.

        By running sums, which in float64 lose nothing that float32 could show; adding by index
        would depend on the order in which a GPU gets to it.
        """
        running = F.pad(rows.double().index_select(-1, self.order).cumsum(-1), (1, 0))
        return running.index_select(-1, self.end) - running.index_select(-1, self.first)

    def tops(self, rows: Tensor) -> Tensor:
        """For every column the largest value of its segment: ``[B, N] -> [B, N]``."""
        slots = self.slot.expand_as(rows)
        tops = rows.new_full((rows.shape[0], rows.shape[1] + 1), -torch.inf)
        return tops.scatter_reduce_(1, slots, rows, "amax").gather(1, slots)


def _spans(slot: Tensor) -> tuple[slice, ...] | None:
    """Where each segment lies, if all lie in one piece and there are some, but at most `FEW`."""
    runs, lengths = torch.unique_consecutive(slot, return_counts=True)
    ends = lengths.cumsum(0).tolist()
    found = {
        run: slice(end - length, end)
        for run, length, end in zip(runs.tolist(), lengths.tolist(), ends, strict=True)
    }
    in_one_piece = len(found) == len(runs)
    found.pop(len(slot), None)
    return tuple(found.values()) if in_one_piece and 0 < len(found) <= FEW else None


def segmented_entmax(
    scores: Tensor, segments: Segments, alpha: float, *, temperature: float = 1.0
) -> Tensor:
    """The α-entmax of ``scores / temperature [B, N]`` within every segment, softmax for α = 1.

    Columns in no segment weigh exactly zero and get no gradient.
    """
    weights: Tensor
    if segments.spans is None:
        weights = _SegmentedEntmax.apply(scores, *segments.tensors(), alpha, temperature)
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
    """As `sodap.prompting.entmax`, with a threshold for every segment."""

    @staticmethod
    def forward(scores: Tensor, *options: Any) -> Tensor:
        segments, alpha, temperature = Segments(*options[:-2]), options[-2], options[-1]
        fused = kernels(scores, alpha)
        if fused is not None:
            found: Tensor = fused.forward(scores, temperature, segments.slot, segments.leads)
            return found
        # What is in no segment must not reach the others through a sort or a running sum.
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

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *segments, ctx.alpha, ctx.temperature = inputs
        ctx.save_for_backward(output, *segments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, *segments = ctx.saved_tensors
        found = entmax_gradient(weights, grad, Segments(*segments), ctx.alpha, ctx.temperature)
        return found, *(None,) * (len(segments) + 2)


def entmax_gradient(
    weights: Tensor, grad: Tensor, segments: Segments, alpha: float, temperature: float
) -> Tensor:
    """What the scores get from the gradient of the weights; all ``[B, N]``."""
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
    pull = slope * grad
    pulls, slopes = segments.sums(torch.stack([pull, slope]))
    # A segment's slopes add up to at least 1; those of no segment are all 0.
    mean = (pulls / slopes.clamp(min=0.5)).to(slope.dtype)
    return pull.addcmul(slope, mean, value=-1) / temperature


def _thresholds_of_squares(z: Tensor, segments: Segments) -> Tensor:
    """τ with ``Σ [z - τ]_+² = 1`` in each segment (α = 1.5): ``[B, N] -> [B, N]`` in float64.

    Every column learns the threshold of its own segment. z lies in [-1, 0].
    """
    # Two apart, so that one sort puts segment after segment and orders each of them.
    apart = 2.0 * segments.slot
    ordered = (z.double() - apart).sort(-1, descending=True).values + apart[segments.order]
    begin = segments.first[segments.order]
    rank = 1 + torch.arange(z.shape[-1], device=z.device) - begin
    running = F.pad(torch.stack([ordered, ordered.square()]).cumsum(-1), (1, 0))
    total, squares = running[..., 1:] - running.index_select(-1, begin)
    # The k best form the support while Σ_{i<=k} (z_i - z_k)² < 1; this sum grows with k.
    spread = squares + ordered * (rank * ordered - 2 * total)
    counted = F.pad((spread < 1).cumsum(-1), (1, 0))
    size = counted.index_select(-1, segments.end) - counted.index_select(-1, segments.first)
    last = (segments.first + size - 1).clamp_(min=0)  # NaN stays NaN, and no bad index
    mean = total.gather(-1, last) / size
    left = 1 - squares.gather(-1, last) + size * mean.square()  # of 1, after the variance
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
