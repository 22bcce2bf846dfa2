"""What a drift test keeps of a domain: moments of random Fourier features, and no row."""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sodap.errors import SodapError
from sodap.randomness import Randomness

MEDIAN_ROWS = 1000
"""Rows that the median distance is computed of, spread evenly over the first batch."""


class MomentReference(nn.Module):
    """Count, mean and scatter of random Fourier features of rows `[n, width]`.

    A row x becomes φ(x) = (cos Wx, sin Wx) / √(m/2), whose inner products approximate a Gaussian
    kernel, so the distance of two means tells any two distributions apart (the maximum mean
    discrepancy, MMD). The first batch fixes the kernel's bandwidth, by the median of its distances.

    It is a module with buffers only: put it into a method, or save its `state_dict`.
    """

    frequencies: Tensor  # of bandwidth 1 [width, m / 2]
    scale: Tensor  # what each number of a row is divided by [width]
    bandwidth: Tensor  # 0 before the first batch []
    count: Tensor  # rows, or groups if they are given []
    mean: Tensor  # [m]
    scatter: Tensor  # Σ (φ - mean)(φ - mean)ᵀ [m, m]

    def __init__(
        self, width: int, features: int = 256, *, scale: Tensor | None = None, seed: int = 0
    ) -> None:
        """Make an empty reference; all numbers of a row are divided by `scale` `[width]`, if given.

        The scale must not be computed from the rows of this reference: they would seem less spread
        than new ones, and false alarms would be more frequent than stated.
        """
        super().__init__()
        if width < 1 or features < 2 or features % 2:
            raise SodapError(
                f"a reference needs rows of at least one number and an even number of features, "
                f"but got width={width} and features={features}"
            )
        generator = Randomness(seed).generator("random Fourier features")
        drawn = torch.randn(width, features // 2, generator=generator, dtype=torch.float64)
        self.register_buffer("frequencies", drawn)
        self.register_buffer("scale", torch.ones(width, dtype=torch.float64))
        if scale is not None:
            self._check_scale(scale)
            self.scale.copy_(scale)
        self.register_buffer("bandwidth", torch.zeros((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("scatter", torch.zeros(features, features, dtype=torch.float64))

    @property
    def bytes(self) -> int:
        """Size of everything that is stored."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers())

    @torch.no_grad()
    def update(self, rows: Tensor, groups: Tensor | None = None) -> Self:
        """Add rows `[n, width]`; with group numbers `[n]`, the mean row of each group counts once.

        All rows of a group belong into one call.
        """
        rows = self._checked(rows, groups)
        if self.bandwidth == 0:
            self.bandwidth.fill_(median_distance(rows))
        features = self._features(rows)
        mean = features.mean(0)
        centred = features - mean
        self._add(len(rows), mean, centred.T @ centred)
        return self

    @torch.no_grad()
    def merge(self, other: MomentReference) -> Self:
        """Add the rows of another reference, which must have the same features and bandwidth."""
        if not all(
            torch.equal(getattr(self, name), getattr(other, name))
            for name in ("frequencies", "scale", "bandwidth")
        ):
            raise SodapError(
                "these references have different features and cannot be merged; "
                "make one from the other with `empty_copy` before it sees rows"
            )
        self._add(int(other.count), other.mean, other.scatter)
        return self

    def empty_copy(self) -> MomentReference:
        """A reference with the same features and bandwidth that has seen no row."""
        width, half = self.frequencies.shape
        copy = MomentReference(width, 2 * half).to(self.mean.device)
        copy.frequencies.copy_(self.frequencies)
        copy.scale.copy_(self.scale)
        copy.bandwidth.copy_(self.bandwidth)
        return copy

    @torch.no_grad()
    def score(self, rows: Tensor) -> Tensor:
        """How unusual each row is, |φ(x) - mean|² `[n]`; for a `Monitor`."""
        if not self.count:
            raise SodapError("this reference has seen no row yet; call update first")
        return (self._features(self._checked(rows, None)) - self.mean).square().sum(1)

    def spectrum(self) -> NDArray[np.float64]:
        """Eigenvalues of the covariance `[m]`, corrected for the small number of rows.

        Those of few rows are too unequal: their sum is right, but the sum of squares is too large.
        All are moved towards their mean until it is the unbiased estimate by Himeno and Yamada
        (2014). It needs Σ |φ - mean|⁴, which follows from mean and scatter because |φ| = 1.
        """
        n, m = int(self.count), len(self.mean)
        if n < 4:
            raise SodapError(f"the covariance needs at least 4 rows or groups, but there are {n}")
        values = torch.linalg.eigvalsh(self.scatter).clamp(min=0) / (n - 1)
        raw: NDArray[np.float64] = values.cpu().numpy()
        total, squares = float(raw.sum()), float((raw**2).sum())
        length = float(self.mean @ self.mean)
        along_mean = float(self.mean @ self.scatter @ self.mean)
        fourth = (n * (1 - length) ** 2 + 4 * along_mean) / (n - 1)
        unbiased = (n - 1) * ((n - 1) * (n - 2) * squares + total**2 - n * fourth)
        unbiased /= n * (n - 2) * (n - 3)
        equal = total**2 / m  # the sum of squares if all were the same
        if squares <= equal:
            return raw
        keep = math.sqrt(min(max((unbiased - equal) / (squares - equal), 0.0), 1.0))
        corrected: NDArray[np.float64] = keep * raw + (1 - keep) * total / m
        return corrected

    def _features(self, rows: Tensor) -> Tensor:
        """φ `[n, m]` of rows `[n, width]`; each has length 1."""
        phase = rows @ (self.frequencies / self.bandwidth)
        return torch.cat([phase.cos(), phase.sin()], dim=1) / math.sqrt(phase.shape[1])

    def _add(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        total = int(self.count) + count
        if count:
            shift = mean - self.mean
            self.scatter += scatter + torch.outer(shift, shift) * (int(self.count) * count / total)
            self.mean += shift * (count / total)
            self.count.fill_(total)

    def _checked(self, rows: Tensor, groups: Tensor | None) -> Tensor:
        """Scaled rows in double precision, one for each group if there are groups."""
        width = len(self.frequencies)
        if rows.ndim != 2 or rows.shape[1] != width or len(rows) == 0:
            raise SodapError(f"rows must have shape [n, {width}], n > 0, got {list(rows.shape)}")
        rows = rows.detach().to(self.mean)
        if not bool(rows.isfinite().all()):
            raise SodapError("rows contain numbers that are not finite; leave such images out")
        rows = rows / self.scale
        return rows if groups is None else group_means(rows, groups)

    def _check_scale(self, scale: Tensor) -> None:
        if scale.shape != self.scale.shape or not bool(((scale > 0) & scale.isfinite()).all()):
            raise SodapError(
                f"scale needs {len(self.scale)} positive numbers, one for each number of a row; "
                f"leave out numbers that never vary"
            )


def group_means(rows: Tensor, groups: Tensor) -> Tensor:
    """Mean row of each group `[g, width]` of rows `[n, width]` with group numbers `[n]`."""
    if groups.shape != rows.shape[:1]:
        raise SodapError(
            f"each of the {len(rows)} rows needs one group number, got {list(groups.shape)}"
        )
    names, index = torch.unique(groups.to(rows.device), return_inverse=True)
    sums = rows.new_zeros(len(names), rows.shape[1]).index_add_(0, index, rows)
    means: Tensor = sums / index.bincount().unsqueeze(1)
    return means


def median_distance(rows: Tensor) -> float:
    """Median distance of two different rows; 1 if more than half of the pairs are the same."""
    if len(rows) < 2:
        raise SodapError(
            "the first batch fixes the bandwidth and needs at least 2 rows or groups, got 1"
        )
    step = -(-len(rows) // MEDIAN_ROWS)
    return float(torch.pdist(rows[::step]).median()) or 1.0
